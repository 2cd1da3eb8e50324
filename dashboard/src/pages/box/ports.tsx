// Ports on which programs in the box listen, and previews of them at an origin of their own.

import { useState } from "react";
import { post, remove } from "../../api/http";
import { t } from "../../i18n";
import { live, type LiveBox } from "../../live";
import { Button, CopyText, Empty, Loaded, Panel, Tag, useLoaded } from "../../ui/basics";
import { Countdown } from "../../ui/clock";
import { attempt } from "../../ui/dialog";
import { ofBox, useAccess } from "./actions";

interface Port { port: number; address: string; process: string; pid: number }
interface Preview { id: string; port: number; url: string; path_url: string; public: boolean; expires_at: number }

export function Ports({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const latest = live.use((state) => state.events.find((event) => event.box_id === box.id)?.seq ?? 0);
  const [shown, setShown] = useState<Preview>();
  const loaded = useLoaded(`${box.id} ${latest}`, (signal) => ofBox<{ ports: Port[] }>(box, "/ports", { signal }));
  const open = (port: number) => () => void attempt("", async () => setShown(await post<Preview>(`/v1/boxes/${box.id}/ports/${port}/url`, {}, access.options)));
  const close = (preview: Preview) => () => void attempt(t("The preview has ended"), async () => {
    await remove(`/v1/boxes/${box.id}/previews/${preview.id}`, access.options);
    setShown(undefined);
  });
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
                  <Button kind="primary" onClick={open(each.port)} blocked={access.blocked}>{t("Preview")}</Button>
                </li>
              ))}
            </ul>
          )}
        </Loaded>
      </Panel>
      {shown && (
        <Panel title={t("Preview of port {port}", { port: shown.port })} side={<>
          {shown.expires_at > 0 && <small className="dim"><Countdown until={shown.expires_at} /></small>}
          {shown.public && <Tag tone="amber">{t("public")}</Tag>}
          {shown.url && <a className="button plain" href={shown.url} target="_blank" rel="noopener noreferrer">{t("Open in a new tab")}</a>}
          <Button kind="danger" onClick={close(shown)}>{t("End the preview")}</Button>
        </>}>
          {shown.url && <CopyText text={shown.url} />}
          {/* Sandboxed, and answered with a sandbox too: the page has an opaque origin and no session of ours. */}
          <iframe className="preview" title={t("Preview of port {port}", { port: shown.port })} src={pathOf(shown.path_url)}
            sandbox="allow-scripts allow-forms allow-modals" referrerPolicy="no-referrer" />
        </Panel>
      )}
    </div>
  );
}

/** The path form on whatever name this page was opened by. */
function pathOf(address: string): string {
  const { pathname, search } = new URL(address, location.origin);
  return pathname + search;
}
