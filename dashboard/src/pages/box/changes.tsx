// Checkpoints of a box's files: what has changed since, go back, undo, fork.

import { useState } from "react";
import { post, remove } from "../../api/http";
import type { BoxInfo } from "../../api/types";
import { bytes, moment } from "../../format";
import { t, word } from "../../i18n";
import { live, type LiveBox } from "../../live";
import { navigate } from "../../router";
import { may } from "../../session";
import { Button, Empty, Field, Loaded, Notice, Panel, Tag, useLoaded } from "../../ui/basics";
import { ActionDialog } from "../../ui/dialog";
import { Icon } from "../../ui/icons";
import { ofBox, useAccess } from "./actions";

interface Checkpoint { id: string; name: string; created_at: number; way: string; automatic: boolean }
interface Change { path: string; kind: string; type: string; size_before: number | null; size_after: number | null; text: string | null }
interface Diff { changes: Change[]; truncated: boolean; left_out: string[] }
interface Asked { what: "checkpoint" | "undo" | "rollback" | "fork" | "delete"; checkpoint?: Checkpoint }

export function Changes({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const latest = live.use((state) => state.events.find((event) => event.box_id === box.id)?.seq ?? 0);
  const [asked, setAsked] = useState<Asked>();
  const [since, setSince] = useState("");
  const loaded = useLoaded(box.id, (signal) => ofBox<{ checkpoints: Checkpoint[] }>(box, "/checkpoints", { signal }), latest);
  return (
    <div className="stack">
      <div className="bar">
        <Button kind="primary" onClick={() => setAsked({ what: "checkpoint" })} blocked={access.blocked}>{t("Make a checkpoint")}</Button>
        <Button onClick={() => setAsked({ what: "undo" })} blocked={access.blocked || (!loaded.value?.checkpoints.some((each) => each.automatic) && t("Only commands of a box with automatic checkpoints can be undone."))}>{t("Undo…")}</Button>
        <Button onClick={() => setAsked({ what: "fork" })} blocked={access.blocked || (!may("create") && t("Your key may not create boxes."))}>{t("Fork…")}</Button>
        <Button onClick={loaded.reload}>{t("Refresh")}</Button>
      </div>
      <Loaded of={loaded}>
        {({ checkpoints }) => checkpoints.length === 0 ? <Empty title={t("There is no checkpoint yet.")}>{t("A checkpoint keeps the files as they are now, so that the box can go back to them.")}</Empty> : (
          <Panel title={t("Checkpoints")}>
            <ul className="list">
              {[...checkpoints].reverse().map((each) => (
                <li key={each.id}>
                  <span className="strong break">{each.name || <span className="mono">{each.id.slice(0, 10)}</span>}</span>
                  <span className="dim">{moment(each.created_at)} {each.automatic && <Tag>{t("automatic")}</Tag>}</span>
                  <Button onClick={() => setSince(each.id)} aria-pressed={since === each.id} blocked={access.blocked}>{t("Changes since")}</Button>
                  <Button onClick={() => setAsked({ what: "fork", checkpoint: each })} blocked={access.blocked || (!may("create") && t("Your key may not create boxes."))}>{t("Fork…")}</Button>
                  <Button kind="danger" onClick={() => setAsked({ what: "rollback", checkpoint: each })} blocked={access.blocked}>{t("Roll back…")}</Button>
                  <Button kind="quiet" aria-label={t("Remove {name}", { name: each.name || each.id })} blocked={access.blocked}
                    onClick={() => setAsked({ what: "delete", checkpoint: each })}><Icon name="close" size={14} /></Button>
                </li>
              ))}
            </ul>
          </Panel>
        )}
      </Loaded>
      {since && <Since key={since} box={box} checkpoint={since} latest={latest} />}
      {asked && <Ask asked={asked} box={box} onClose={() => setAsked(undefined)} done={loaded.reload} />}
    </div>
  );
}

function Since({ box, checkpoint, latest }: { box: LiveBox; checkpoint: string; latest: number }) {
  const loaded = useLoaded(checkpoint, (signal) => ofBox<Diff>(box, "/diff", { query: { start: checkpoint, text: true }, uses: true, signal }), latest);
  return (
    <Panel title={t("Changes since")} side={<Button onClick={loaded.reload}>{t("Refresh")}</Button>}>
      <Loaded of={loaded}>
        {(diff) => diff.changes.length === 0 ? <Empty title={t("Nothing has changed.")} /> : <>
          {diff.truncated && <Notice title={t("There are more changes than are listed.")} />}
          {diff.changes.map((change) => (
            <details key={change.path} className="change">
              <summary>
                <Tag tone={change.kind === "added" ? "good" : change.kind === "removed" ? "bad" : "amber"}>{word(change.kind)}</Tag>{" "}
                <span className="mono break">{change.path}</span>{" "}
                <small className="dim">{change.size_after !== null ? bytes(change.size_after) : ""}</small>
              </summary>
              {change.text ? <pre className="output code" tabIndex={0}>{change.text.split("\n").map((line, index) => <span key={index} className={lineClass(line)}>{line}{"\n"}</span>)}</pre> : <p className="dim">{t("Its content is not shown: it is no text, or too long.")}</p>}
            </details>
          ))}
        </>}
      </Loaded>
    </Panel>
  );
}

function lineClass(line: string): string {
  if (line.startsWith("+") && !line.startsWith("+++")) return "line-added";
  return line.startsWith("-") && !line.startsWith("---") ? "line-removed" : "";
}

function Ask({ asked, box, onClose, done }: { asked: Asked; box: LiveBox; onClose: () => void; done: () => void }) {
  const access = useAccess(box);
  const [name, setName] = useState("");
  const [kill, setKill] = useState(false);
  const path = `/v1/boxes/${box.id}`;
  const send = (rest: string, body: unknown) => post<unknown>(`${path}/${rest}`, body, access.options).then(done);
  const ending = (
    <label className="check"><input type="checkbox" checked={kill} onChange={(event) => setKill(event.target.checked)} />{t("End its running processes first")}</label>
  );
  if (asked.what === "checkpoint") {
    return (
      <ActionDialog title={t("Make a checkpoint")} action={t("Create")} onClose={onClose} run={() => send("checkpoints", { name })}>
        <Field label={t("Name")}>{(id) => <input id={id} autoFocus placeholder={t("optional")} value={name} onChange={(event) => setName(event.target.value)} />}</Field>
      </ActionDialog>
    );
  }
  if (asked.what === "undo") {
    return (
      <ActionDialog title={t("Undo")} action={t("Undo")} danger onClose={onClose} run={() => send("undo", { kill })}>
        <p>{t("The files go back to what they were before the last command that changed them.")}</p>
        {ending}
      </ActionDialog>
    );
  }
  if (asked.what === "rollback") {
    return (
      <ActionDialog title={t("Roll back")} action={t("Roll back")} danger onClose={onClose} run={() => send("rollback", { checkpoint: asked.checkpoint!.id, kill })}>
        <p>{t("The files go back to this checkpoint. What was written since is lost.")}</p>
        {ending}
      </ActionDialog>
    );
  }
  if (asked.what === "delete") {
    const { id, name: called } = asked.checkpoint!;
    return (
      <ActionDialog title={t("Remove {name}", { name: called || id.slice(0, 10) })} action={t("Remove")} danger onClose={onClose}
        run={() => remove(`${path}/checkpoints/${encodeURIComponent(id)}`, access.options).then(done)}>
        <p>{t("The box cannot go back to this checkpoint any more. Its present files stay.")}</p>
      </ActionDialog>
    );
  }
  return (
    <ActionDialog title={t("Fork")} action={t("Fork")} onClose={onClose} run={async () => {
      const made = await post<{ boxes: BoxInfo[] }>(`${path}/fork`, { count: 1, checkpoint: asked.checkpoint?.id ?? "" }, access.options);
      if (made.boxes[0]) navigate(`/boxes/${made.boxes[0].id}`);
    }}>
      <p>{t("A new box begins with these files. Running processes are not carried along.")}</p>
    </ActionDialog>
  );
}
