// Skills: read them, see their versions, go back to one; install from a repository or a zip file after a look at it.

import { useState } from "react";
import { get, post, remove, request } from "../api/http";
import type { Skill } from "../api/types";
import { bytes, moment } from "../format";
import { t, word } from "../i18n";
import { navigate } from "../router";
import { may } from "../session";
import { Button, Empty, ErrorNotice, Facts, Field, Loaded, Notice, Panel, Tag, useLoaded } from "../ui/basics";
import { ActionDialog, attempt, Dialog } from "../ui/dialog";
import { Highlight } from "../ui/highlight";

interface Version { digest: string; installed_at: number; origin: string; active: boolean; pinned: boolean }
interface SkillFile { path: string; size: number }
interface Preview {
  name: string; description: string; digest: string; size: number; files: SkillFile[]; warnings: string[];
  replaces: string; changes: { path: string; kind: string }[];
}

const observers = () => !may("change") && t("Observers look, and change nothing.");

export function Skills({ name }: { name?: string }) {
  const [installing, setInstalling] = useState(false);
  const loaded = useLoaded("skills", (signal) => get<{ skills: Skill[] }>("/v1/skills", { signal }));
  return (
    <>
      <div className="bar">
        <h1>{t("Skills")}</h1>
        <span className="grow" />
        <Button onClick={loaded.reload}>{t("Refresh")}</Button>
        <Button kind="primary" onClick={() => setInstalling(true)} blocked={observers()}>{t("Install a skill")}</Button>
      </div>
      <Loaded of={loaded}>
        {({ skills }) => skills.length === 0 ? <Empty title={t("No skill is installed.")}>{t("Skills are packages of instructions and scripts that boxes show to agents.")}</Empty> : (
          <div className="split">
            <ul className="choices" aria-label={t("Skills")}>
              {skills.map((skill) => (
                <li key={skill.name}>
                  <button type="button" aria-pressed={name === skill.name} onClick={() => navigate(`/skills/${skill.name}`)}>
                    <span className="strong cut">{skill.name}</span>
                    <small className="dim cut">{skill.description}</small>
                  </button>
                </li>
              ))}
            </ul>
            {name && skills.some((skill) => skill.name === name)
              ? <OneSkill key={name} skill={skills.find((skill) => skill.name === name)!} reload={loaded.reload} />
              : <Empty title={t("Choose a skill to see it.")} />}
          </div>
        )}
      </Loaded>
      {installing && <Install onClose={() => setInstalling(false)} done={(made) => { loaded.reload(); navigate(`/skills/${made}`); }} />}
    </>
  );
}

function OneSkill({ skill, reload }: { skill: Skill; reload: () => void }) {
  const path = `/v1/skills/${skill.name}`;
  const [removing, setRemoving] = useState(false);
  const body = useLoaded(`${path} ${skill.digest}`, (signal) => get<{ body: string }>(`${path}/body`, { signal }));
  const files = useLoaded(`${path} files ${skill.digest}`, (signal) => get<{ files: SkillFile[] }>(`${path}/files`, { signal }));
  const versions = useLoaded(`${path} versions ${skill.digest} ${String(skill.pinned)}`, (signal) => get<{ versions: Version[] }>(`${path}/versions`, { signal }));
  const act = (done: string, action: () => Promise<unknown>) => () => void attempt(done, action).then(reload);
  return (
    <div className="stack">
      <Panel title={skill.name} side={<>
        {skill.pinned
          ? <Button onClick={act(t("Unpinned"), () => remove(`${path}/pin`))} blocked={observers()}>{t("Unpin")}</Button>
          : <Button onClick={act(t("Pinned"), () => post(`${path}/pin`, {}))} blocked={observers()}>{t("Pin")}</Button>}
        <Button onClick={act(t("Upgraded"), () => post(`${path}/upgrade`, {}))} blocked={observers() || (Boolean(skill.pinned) && t("It is pinned."))}>{t("Upgrade")}</Button>
        <Button kind="danger" onClick={() => setRemoving(true)} blocked={observers()}>{t("Remove")}</Button>
      </>}>
        {Boolean(skill.warning) && <Notice tone="warning" title={String(skill.warning)} />}
        <Facts rows={[
          [t("Description"), skill.description],
          [t("Version"), <span className="mono">{skill.digest.slice(0, 12)}</span>],
          [t("From"), <span className="break">{String(skill.origin ?? "")}</span>],
          [t("Size"), bytes(Number(skill.size ?? 0))],
          [t("Licence"), String(skill.license ?? "")],
        ]} />
      </Panel>
      <Panel title={t("Versions")}>
        <Loaded of={versions}>
          {(found) => (
            <ul className="list">
              {found.versions.map((version) => (
                <li key={version.digest}>
                  <span className="mono">{version.digest.slice(0, 12)}</span>
                  <span className="dim">{moment(version.installed_at)}</span>
                  {version.active ? <Tag tone="good">{t("active")}</Tag> : (
                    <Button onClick={act(t("Rolled back"), () => post(`${path}/rollback`, { version: version.digest }))} blocked={observers()}>{t("Roll back to this")}</Button>
                  )}
                  {version.pinned && <Tag>{t("pinned")}</Tag>}
                </li>
              ))}
            </ul>
          )}
        </Loaded>
      </Panel>
      <Panel title={t("Instructions")}>
        <Loaded of={body}>{(text) => <pre className="output prose" tabIndex={0}><Highlight text={text.body || t("none")} name="SKILL.md" /></pre>}</Loaded>
      </Panel>
      <Panel title={t("Files")}>
        <Loaded of={files}>{(found) => <ul className="list">{found.files.map((file) => <li key={file.path}><span className="mono break">{file.path}</span><span className="dim">{bytes(file.size)}</span></li>)}</ul>}</Loaded>
      </Panel>
      {removing && (
        <ActionDialog title={t("Remove {name}", { name: skill.name })} action={t("Remove")} danger onClose={() => setRemoving(false)}
          run={async () => { await remove(path); navigate("/skills"); reload(); }}>
          <p>{t("The skill goes with all its versions, also from running boxes.")}</p>
        </ActionDialog>
      )}
    </div>
  );
}

type Source = { git: string; path: string } | File;

/** Two steps: look at what would come and change, then install exactly that version. */
function Install({ onClose, done }: { onClose: () => void; done: (name: string) => void }) {
  const [git, setGit] = useState("");
  const [folder, setFolder] = useState("");
  const [file, setFile] = useState<File>();
  const [preview, setPreview] = useState<Preview>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const source: Source | undefined = file ?? (git ? { git, path: folder } : undefined);
  const send = <T,>(step: string, digest = ""): Promise<T> =>
    source instanceof File
      ? request<T>("POST", `/v1/skills/archive${step}`, { content: source, query: { digest: digest || undefined } })
      : post<T>(`/v1/skills${step}`, { ...source, digest });
  const run = async (work: () => Promise<void>) => {
    setBusy(true);
    setError(undefined);
    await work().catch(setError);
    setBusy(false);
  };
  return (
    <Dialog title={t("Install a skill")} onClose={onClose} wide>
      <div className="dialog-body">
        <div className="form">
          <Field label={t("Git repository")} hint="https://…">{(id) => <input id={id} autoFocus value={git} onChange={(event) => { setGit(event.target.value); setPreview(undefined); }} />}</Field>
          <Field label={t("Folder in it")}>{(id) => <input id={id} value={folder} placeholder={t("optional")} onChange={(event) => { setFolder(event.target.value); setPreview(undefined); }} />}</Field>
          <Field label={t("Or a zip file")}>{(id) => <input id={id} type="file" accept=".zip" onChange={(event) => { setFile(event.target.files?.[0]); setPreview(undefined); }} />}</Field>
        </div>
        {error !== undefined && <ErrorNotice error={error} />}
        {preview && (
          <section className="plan" aria-live="polite">
            <h3>{t("What would be installed")}</h3>
            <Facts rows={[[t("Name"), preview.name], [t("Description"), preview.description], [t("Size"), `${bytes(preview.size)}, ${t("{count} files", { count: preview.files.length })}`], [t("Replaces"), preview.replaces.slice(0, 12)]]} />
            {preview.warnings.map((warning) => <Notice key={warning} tone="warning" title={warning} />)}
            <ul className="list">{preview.changes.map((change) => <li key={change.path}><Tag>{word(change.kind)}</Tag><span className="mono break">{change.path}</span></li>)}</ul>
          </section>
        )}
      </div>
      <footer>
        <Button onClick={onClose}>{t("Cancel")}</Button>
        <Button onClick={() => void run(async () => setPreview(await send<Preview>("/preview")))} disabled={!source || busy}>{busy ? t("Working…") : t("Look at it")}</Button>
        <Button kind="primary" disabled={!preview || busy} onClick={() => void run(async () => {
          const made = await send<Skill>("", preview!.digest);
          onClose();
          done(made.name);
        })}>{t("Install")}</Button>
      </footer>
    </Dialog>
  );
}
