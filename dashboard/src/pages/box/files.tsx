// The files of a box: browse, upload by drop, make and remove.

import { type DragEvent, useRef, useState } from "react";
import { post, remove, request } from "../../api/http";
import type { FileInfo } from "../../api/types";
import { bytes, moment } from "../../format";
import { t } from "../../i18n";
import type { LiveBox } from "../../live";
import { Button, Empty, Field, Loaded, useLoaded } from "../../ui/basics";
import { ActionDialog, attempt, say } from "../../ui/dialog";
import { Icon } from "../../ui/icons";
import { ofBox, useAccess } from "./actions";
import { FileView } from "./file-view";

export function Files({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const [directory, setDirectory] = useState(box.spec.workdir);
  const [shown, setShown] = useState<FileInfo>();
  const [asked, setAsked] = useState<"" | "mkdir" | FileInfo>("");
  const [over, setOver] = useState(false);
  const chooser = useRef<HTMLInputElement>(null);
  const loaded = useLoaded(`${box.id} ${directory}`, (signal) => ofBox<{ files: FileInfo[] }>(box, "/files", { query: { path: directory }, signal }));
  const upload = async (files: FileList | null) => {
    // A copy, because the chooser's list is emptied while the first file is still on its way.
    for (const file of [...(files ?? [])]) {
      await attempt(t("Uploaded {name}", { name: file.name }), () =>
        request("PUT", `/v1/boxes/${box.id}/files/content`, { ...access.options, query: { path: join(directory, file.name) }, content: file }));
    }
    loaded.reload();
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    if (access.blocked) say(access.blocked, "error");
    else void upload(event.dataTransfer.files);
  };
  const enter = (file: FileInfo) => {
    if (file.kind !== "directory" && file.kind !== "dir") setShown(file);
    else {
      setShown(undefined);
      setDirectory(file.path);
    }
  };
  return (
    <div className={`files ${over ? "over" : ""}`} onDragOver={(event) => { event.preventDefault(); setOver(true); }} onDragLeave={() => setOver(false)} onDrop={drop}>
      <div className="bar">
        <Crumbs path={directory} go={(path) => { setShown(undefined); setDirectory(path); }} />
        <span className="grow" />
        <Button onClick={loaded.reload}>{t("Refresh")}</Button>
        <Button onClick={() => setAsked("mkdir")} blocked={access.blocked}>{t("New directory")}</Button>
        <Button kind="primary" onClick={() => chooser.current?.click()} blocked={access.blocked}>{t("Upload")}</Button>
        <input ref={chooser} type="file" multiple hidden aria-label={t("Upload")} onChange={(event) => { void upload(event.target.files); event.target.value = ""; }} />
      </div>
      <div className="split">
        <Loaded of={loaded} rows={6}>
          {({ files }) => files.length === 0 ? <Empty title={t("This directory is empty.")}>{t("Drop files here to upload them.")}</Empty> : (
            <ul className="choices file-list" aria-label={t("Files")}>
              {[...files].sort(byKind).map((file) => (
                <li key={file.path}>
                  <button type="button" aria-pressed={shown?.path === file.path} onClick={() => enter(file)}>
                    <Icon name={isDirectory(file) ? "folder" : "file"} />
                    <span className="mono cut">{nameOf(file.path)}{file.target ? ` → ${file.target}` : ""}</span>
                    <small className="dim">{isDirectory(file) ? "" : bytes(file.size)}</small>
                    <small className="dim">{moment(file.mtime)}</small>
                  </button>
                  <Button kind="quiet" aria-label={t("Remove {name}", { name: nameOf(file.path) })} onClick={() => setAsked(file)} blocked={access.blocked}><Icon name="close" size={14} /></Button>
                </li>
              ))}
            </ul>
          )}
        </Loaded>
        {shown ? <FileView key={shown.path} box={box} file={shown} changed={loaded.reload} /> : <Empty title={t("Choose a file to see it.")}>{t("Drop files here to upload them.")}</Empty>}
      </div>
      {asked === "mkdir" && <MakeDirectory onClose={() => setAsked("")} make={async (name) => {
        await post(`/v1/boxes/${box.id}/files/mkdir`, { path: join(directory, name) }, access.options);
        loaded.reload();
      }} />}
      {typeof asked === "object" && (
        <ActionDialog title={t("Remove {name}", { name: nameOf(asked.path) })} action={t("Remove")} danger onClose={() => setAsked("")}
          run={async () => {
            await remove(`/v1/boxes/${box.id}/files/content`, { ...access.options, query: { path: asked.path, recursive: isDirectory(asked) } });
            if (shown?.path === asked.path) setShown(undefined);
            loaded.reload();
          }}>
          <p>{isDirectory(asked) ? t("The directory and everything in it is removed.") : t("The file is removed.")}</p>
        </ActionDialog>
      )}
    </div>
  );
}

function MakeDirectory({ onClose, make }: { onClose: () => void; make: (name: string) => Promise<void> }) {
  const [name, setName] = useState("");
  return (
    <ActionDialog title={t("New directory")} action={t("Create")} onClose={onClose} run={() => make(name)} ready={Boolean(name)}>
      <Field label={t("Name")}>{(id) => <input id={id} autoFocus value={name} onChange={(event) => setName(event.target.value)} />}</Field>
    </ActionDialog>
  );
}

function Crumbs({ path, go }: { path: string; go: (path: string) => void }) {
  const parts = path.split("/").filter(Boolean);
  return (
    <nav className="crumbs mono" aria-label={t("Path")}>
      <button type="button" onClick={() => go("/")} aria-label={t("Root")}>/</button>
      {parts.map((part, index) => (
        <button key={index} type="button" onClick={() => go(`/${parts.slice(0, index + 1).join("/")}`)}>{part}</button>
      ))}
    </nav>
  );
}

function isDirectory(file: FileInfo): boolean {
  return file.kind === "directory" || file.kind === "dir";
}

function byKind(one: FileInfo, other: FileInfo): number {
  return Number(isDirectory(other)) - Number(isDirectory(one)) || (one.path < other.path ? -1 : 1);
}

export function nameOf(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

function join(directory: string, name: string): string {
  return `${directory.replace(/\/$/, "")}/${name}`;
}
