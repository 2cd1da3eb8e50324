// A page that a program in a box serves, in a frame that has no session of ours.

import { useEffect, useRef, useState } from "react";
import { post, remove } from "../../api/http";
import { t } from "../../i18n";
import type { LiveBox } from "../../live";
import { Button, CopyText, Notice, Panel, Tag } from "../../ui/basics";
import { Countdown } from "../../ui/clock";
import { attempt } from "../../ui/dialog";
import { useAccess } from "./actions";

export interface Preview {
  id: string;
  port: number;
  url: string;
  path_url: string;
  public: boolean;
  expires_at: number;
}

/** The preview that is shown, and how to open and end one. */
export function usePreview(box: LiveBox) {
  const access = useAccess(box);
  const [shown, setShown] = useState<Preview>();
  const open = (port: number) => attempt("", async () => {
    setShown(await post<Preview>(`/v1/boxes/${box.id}/ports/${port}/url`, {}, access.options));
  });
  const end = (preview: Preview) => attempt(t("The preview has ended"), async () => {
    await remove(`/v1/boxes/${box.id}/previews/${preview.id}`, access.options);
    setShown(undefined);
  });
  return { shown, open, end };
}

/** `closed`: nothing listens on the port now. What the page showed last stays, and it is loaded again when the port is back. */
export function PreviewPanel({ preview, closed, end }: { preview: Preview; closed: boolean; end: (preview: Preview) => void }) {
  const [round, setRound] = useState(0);
  const before = useRef(closed);
  useEffect(() => {
    if (before.current && !closed) setRound((last) => last + 1);
    before.current = closed;
  }, [closed]);
  const title = t("Preview of port {port}", { port: preview.port });
  return (
    <Panel className="preview-panel" title={title} side={<>
      {preview.expires_at > 0 && <small className="dim" title={t("Time left")}><Countdown until={preview.expires_at} /></small>}
      {preview.public && <Tag tone="amber">{t("public")}</Tag>}
      <Button onClick={() => setRound((last) => last + 1)}>{t("Reload")}</Button>
      {preview.url && <a className="button plain" href={preview.url} target="_blank" rel="noopener noreferrer">{t("Open in a new tab")}</a>}
      <Button kind="danger" onClick={() => end(preview)}>{t("End the preview")}</Button>
    </>}>
      {closed && <Notice tone="warning" title={t("Nothing listens on port {port} any more.", { port: preview.port })}>{t("Below is what it sent last. It loads again when a program listens there again.")}</Notice>}
      {preview.url && <CopyText text={preview.url} shown={preview.url.split("?")[0]} />}
      {/* Sandboxed, and answered with a sandbox too: the page has an opaque origin and no session of ours. */}
      <iframe key={round} className="preview" title={title} src={pathOf(preview.path_url)}
        sandbox="allow-scripts allow-forms allow-modals" referrerPolicy="no-referrer" />
    </Panel>
  );
}

/** The path form on whatever name this page was opened by. */
function pathOf(address: string): string {
  const { pathname, search } = new URL(address, location.origin);
  return pathname + search;
}
