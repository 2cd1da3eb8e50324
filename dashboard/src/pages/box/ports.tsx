// Ports on which programs in the box listen, and previews of them.

import { t } from "../../i18n";
import { live, type LiveBox } from "../../live";
import { Button, Empty, Loaded, Panel, useLoaded } from "../../ui/basics";
import { ofBox, useAccess } from "./actions";
import { PreviewPanel, usePreview } from "./preview";

interface Port { port: number; address: string; process: string; pid: number }

export function Ports({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const latest = live.use((state) => state.events.find((event) => event.box_id === box.id)?.seq ?? 0);
  const preview = usePreview(box);
  const loaded = useLoaded(box.id, (signal) => ofBox<{ ports: Port[] }>(box, "/ports", { signal }), latest);
  const shown = preview.shown;
  return (
    <div className="stack">
      <Panel title={t("Ports")} side={<Button onClick={loaded.reload}>{t("Refresh")}</Button>}>
        <Loaded of={loaded}>
          {({ ports }) => ports.length === 0 ? <Empty title={t("No program listens on a port.")}>{t("Start a web application in the box, and it appears here.")}</Empty> : (
            <ul className="list">
              {ports.map((each) => (
                <li key={`${each.port} ${each.address}`}>
                  <span className="mono strong">{each.port}</span>
                  <span className="dim">{each.process} {each.address}</span>
                  <Button kind="primary" onClick={() => void preview.open(each.port)} blocked={access.blocked}>{t("Preview")}</Button>
                </li>
              ))}
            </ul>
          )}
        </Loaded>
      </Panel>
      {shown && (
        <PreviewPanel key={shown.id} preview={shown} end={(ended) => void preview.end(ended)}
          closed={loaded.value !== undefined && !loaded.value.ports.some((each) => each.port === shown.port)} />
      )}
    </div>
  );
}
