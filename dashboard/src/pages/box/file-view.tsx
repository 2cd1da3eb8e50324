// One file: its text with colours, a picture, or the first bytes of something else; edited text is saved as it was read.

import { useEffect, useState } from "react";
import { ApiError, open, request } from "../../api/http";
import type { FileInfo } from "../../api/types";
import { bytes } from "../../format";
import { t } from "../../i18n";
import type { LiveBox } from "../../live";
import { isForeign } from "../../session";
import { Button, Loaded, Notice, Panel, useLoaded } from "../../ui/basics";
import { attempt } from "../../ui/dialog";
import { Highlight } from "../../ui/highlight";
import { ofBox, useAccess } from "./actions";
import { nameOf } from "./files";

const MOST_READ = 512 * 1024;
const MOST_EDITED = MOST_READ;
const PICTURES: Record<string, string> = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };

interface Content {
  data: Uint8Array;
  whole: boolean;
  text: string | null;
}

export function FileView({ box, file, changed }: { box: LiveBox; file: FileInfo; changed: () => void }) {
  const access = useAccess(box);
  const [draft, setDraft] = useState<string>();
  const [round, setRound] = useState(0);
  const path = `/v1/boxes/${box.id}/files/content`;
  const loaded = useLoaded(file.path, (signal) => read(box, file, signal), round);
  const download = () => attempt("", async () => {
    const response = await open("GET", path, { query: { path: file.path }, admin: isForeign(box) });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await response.blob()], { type: "application/octet-stream" }));
    link.download = nameOf(file.path);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  });
  const save = () => attempt(t("Saved"), async () => {
    const now = await ofBox<FileInfo>(box, "/files/stat", { query: { path: file.path } });
    if (now.mtime !== loaded.value?.info.mtime) {
      throw new ApiError(409, "file_changed", t("Somebody changed the file since you opened it."), t("Copy your text, and open the file again."));
    }
    await request("PUT", path, { ...access.options, query: { path: file.path }, content: draft ?? "" });
    setDraft(undefined);
    setRound((before) => before + 1);
    changed();
  });
  return (
    <Panel className="file" title={<span className="mono break">{nameOf(file.path)}</span>}
      side={<>
        {draft === undefined
          ? <Button onClick={() => setDraft(loaded.value?.content.text ?? "")} blocked={access.blocked || notEditable(loaded.value?.content)}>{t("Edit")}</Button>
          : <><Button kind="primary" onClick={() => void save()}>{t("Save")}</Button><Button onClick={() => setDraft(undefined)}>{t("Cancel")}</Button></>}
        <Button onClick={() => void download()}>{t("Download")}</Button>
      </>}>
      <Loaded of={loaded}>
        {({ content, info }) => draft === undefined ? <Shown file={info} content={content} /> : (
          <textarea className="mono editor" aria-label={t("Content of {name}", { name: nameOf(file.path) })} value={draft} spellCheck={false} onChange={(event) => setDraft(event.target.value)} />
        )}
      </Loaded>
    </Panel>
  );
}

function notEditable(content: Content | undefined): string | false {
  if (!content || content.text === null) return t("Only text can be edited here.");
  return !content.whole && t("Only files up to {size} can be edited here.", { size: bytes(MOST_EDITED) });
}

async function read(box: LiveBox, file: FileInfo, signal: AbortSignal): Promise<{ content: Content; info: FileInfo }> {
  // What the list showed may be old: the file is compared with this before it is saved.
  const info = await ofBox<FileInfo>(box, "/files/stat", { query: { path: file.path }, signal });
  const options = { query: { path: file.path, offset: 0, limit: MOST_READ }, admin: isForeign(box), signal };
  const response = await open("GET", `/v1/boxes/${box.id}/files/content`, options);
  const data = new Uint8Array(await response.arrayBuffer());
  const whole = data.length < MOST_READ;
  return { content: { data, whole, text: asText(data, whole) }, info };
}

/** The bytes as text; null if they are none, so that saving could not write them back as they were. */
function asText(data: Uint8Array, whole: boolean): string | null {
  if (data.includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data, { stream: !whole });
  } catch {
    return null;
  }
}

function Shown({ file, content }: { file: FileInfo; content: Content }) {
  const picture = PICTURES[file.path.split(".").at(-1)?.toLowerCase() ?? ""];
  if (picture && content.whole) return <Picture data={content.data} type={picture} name={nameOf(file.path)} />;
  return (
    <>
      {!content.whole && <Notice title={t("Only the first {part} of {all} are shown.", { part: bytes(MOST_READ), all: bytes(file.size) })} />}
      {content.text === null
        ? <><Notice title={t("This is not text. Its first bytes:")} /><pre className="output" tabIndex={0}>{hex(content.data.subarray(0, 1024))}</pre></>
        : <pre className="output code" tabIndex={0}><Highlight text={content.text} name={file.path} /></pre>}
    </>
  );
}

/** A picture is shown by an <img>, in which no script of an SVG runs. */
function Picture({ data, type, name }: { data: Uint8Array; type: string; name: string }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([data as Uint8Array<ArrayBuffer>], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [data, type]);
  return url ? <img className="picture" src={url} alt={name} /> : null;
}

function hex(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const shown = row.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${row.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}
