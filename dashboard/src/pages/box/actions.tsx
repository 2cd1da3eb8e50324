// What can be done to a box, guarded by its state, its holder and the caller's rights; what loses something asks first.

import { type ReactNode, useState } from "react";
import { get, type Options, post, remove, request } from "../../api/http";
import { boxTitle } from "../../format";
import { t } from "../../i18n";
import type { LiveBox } from "../../live";
import { isForeign, may, useSession } from "../../session";
import { Button, Field, Notice, Select } from "../../ui/basics";
import { ActionDialog, attempt, say } from "../../ui/dialog";

export interface Access {
  /** Why the box cannot be changed now; empty if it can. */
  blocked: string;
  /** Options of every change: another owner's box takes an admin's powers. */
  options: Options;
  /** Whether another session holds it. */
  held: boolean;
}

export function useAccess(box: LiveBox): Access {
  const session = useSession();
  const foreign = isForeign(box);
  const held = box.lease !== null && box.lease.holder !== session.session;
  let blocked = "";
  if (!may("change")) blocked = t("Observers look, and change nothing.");
  else if (foreign && session.role !== "admin") blocked = t("It belongs to another owner.");
  else if (box.elsewhere) blocked = t("Another process keeps this box.");
  else if (held && !foreign) blocked = t("{holder} holds it: take it over first.", { holder: box.lease!.holder });
  return { blocked, options: foreign ? { admin: true } : {}, held };
}

type Asked = "" | "destroy" | "takeover" | "change" | "stop";

export function BoxActions({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const session = useSession();
  const [asked, setAsked] = useState<Asked>("");
  const path = `/v1/boxes/${box.id}`;
  const wrong = (...states: string[]) => !states.includes(box.state) && t("Not while it is {state}.", { state: box.state });
  const act = (done: string, action: string) => () => void attempt(done, () => post(`${path}/${action}`, {}, access.options));
  const mine = box.lease?.holder === session.session;
  return (
    <div className="actions">
      {access.held && !isForeign(box) && (
        <Button kind="primary" onClick={() => setAsked("takeover")} blocked={!may("takeover") && t("Your key may not take boxes over.")}>{t("Take over")}</Button>
      )}
      {mine && <>
        <Button onClick={() => void attempt(t("Released"), () => remove(`${path}/lease`))}>{t("Release")}</Button>
        <Button onClick={() => void attempt(t("Renewed"), () => post(`${path}/lease`, { renew: true }))}>{t("Renew")}</Button>
      </>}
      {box.state === "paused" || box.state === "stopped"
        ? <Button onClick={act(t("Resumed"), "resume")} blocked={access.blocked}>{t("Resume")}</Button>
        : <Button onClick={act(t("Paused"), "pause")} blocked={access.blocked || wrong("running")}>{t("Pause")}</Button>}
      {box.spec.retention === "persistent" && (
        <Button onClick={() => setAsked("stop")} blocked={access.blocked || wrong("running", "paused")}>{t("Stop")}</Button>
      )}
      <Button onClick={() => setAsked("change")} blocked={access.blocked || wrong("running", "paused")}>{t("Change…")}</Button>
      <Button onClick={() => void attempt(t("It is the default box now"), () => request("PUT", "/v1/default", { body: { box: box.id } }))}
        blocked={(isForeign(box) && t("It belongs to another owner.")) || (!may("change") && access.blocked)}>{t("Make default")}</Button>
      <Button kind="danger" onClick={() => setAsked("destroy")}
        blocked={(!may("destroy") && t("Your key may not destroy boxes.")) || wrong("creating", "running", "paused", "stopped", "error", "unknown")}>{t("Destroy…")}</Button>
      {asked === "destroy" && <Destroy box={box} access={access} onClose={() => setAsked("")} />}
      {asked === "takeover" && (
        <ActionDialog title={t("Take over {box}", { box: boxTitle(box) })} action={t("Take over")} onClose={() => setAsked("")}
          run={() => post(`${path}/lease`, { takeover: true }).then(() => say(t("You hold it now")))}>
          <p>{t("{holder} loses it at once: its handles stop working, while running jobs go on.", { holder: box.lease?.holder ?? "" })}</p>
        </ActionDialog>
      )}
      {asked === "stop" && (
        <ActionDialog title={t("Stop {box}", { box: boxTitle(box) })} action={t("Stop")} danger onClose={() => setAsked("")}
          run={() => post(`${path}/stop`, {}, access.options)}>
          <p>{t("Its processes end. Its files stay, and its next use starts it again.")}</p>
        </ActionDialog>
      )}
      {asked === "change" && <Change box={box} access={access} onClose={() => setAsked("")} />}
    </div>
  );
}

function AsAdmin({ box }: { box: LiveBox }): ReactNode {
  if (!isForeign(box)) return null;
  return <Notice tone="warning" title={t("You act as an administrator on a box of {owner}.", { owner: box.owner })}>{t("This is logged, and stands in its receipts.")}</Notice>;
}

function Destroy({ box, access, onClose }: { box: LiveBox; access: Access; onClose: () => void }) {
  return (
    <ActionDialog title={t("Destroy {box}", { box: boxTitle(box) })} action={t("Destroy")} danger onClose={onClose}
      run={() => remove(`/v1/boxes/${box.id}`, { ...access.options, query: { force: access.held ? true : undefined } })}>
      <AsAdmin box={box} />
      <p>{t("The box, its processes and all of its files are removed. This cannot be undone.")}</p>
      {access.held && <p><b>{t("{holder} is using it now.", { holder: box.lease!.holder })}</b></p>}
    </ActionDialog>
  );
}

function Change({ box, access, onClose }: { box: LiveBox; access: Access; onClose: () => void }) {
  const spec = box.spec;
  const [name, setName] = useState(box.name);
  const [retention, setRetention] = useState<string>(spec.retention);
  const [idle, setIdle] = useState(String(spec.idle_timeout_sec));
  const [memory, setMemory] = useState(String(spec.limits.memory_mb));
  const [cpus, setCpus] = useState(String(spec.limits.cpus));
  const [timeout, setTimeoutText] = useState(String(spec.limits.timeout_sec));
  const run = async () => {
    const limits: Record<string, number> = {};
    if (Number(memory) !== spec.limits.memory_mb) limits.memory_mb = Number(memory);
    if (Number(cpus) !== spec.limits.cpus) limits.cpus = Number(cpus);
    if (Number(timeout) !== spec.limits.timeout_sec) limits.timeout_sec = Number(timeout);
    const body: Record<string, unknown> = {};
    if (name !== box.name) body.name = name;
    if (retention !== spec.retention) body.retention = retention;
    if (Number(idle) !== spec.idle_timeout_sec) body.idle_timeout_sec = Number(idle);
    if (Object.keys(limits).length) body.limits = limits;
    const answer = await request<{ refused: string[] }>("PATCH", `/v1/boxes/${box.id}`, { ...access.options, body });
    if (answer.refused.length) say(t("Not changed: {what} would need a new box.", { what: answer.refused.join(", ") }), "error");
    else say(t("Changed"));
  };
  const input = (label: string, value: string, set: (text: string) => void, decimal = true) => (
    <Field label={label}>{(id) => <input id={id} value={value} inputMode={decimal ? "decimal" : undefined} onChange={(event) => set(event.target.value)} />}</Field>
  );
  return (
    <ActionDialog title={t("Change {box}", { box: boxTitle(box) })} action={t("Save")} onClose={onClose} run={run}>
      <AsAdmin box={box} />
      <div className="form">
        {input(t("Name"), name, setName, false)}
        {may("set_retention") && (
          <Field label={t("Retention")}>{(id) => <Select id={id} value={retention} onChange={setRetention} options={[["temporary", t("temporary")], ["persistent", t("persistent")]]} />}</Field>
        )}
        {input(t("Idle timeout (s)"), idle, setIdle)}
        {input(t("Command timeout (s)"), timeout, setTimeoutText)}
        {input(t("CPUs"), cpus, setCpus)}
        {input(t("Memory (MB)"), memory, setMemory)}
      </div>
    </ActionDialog>
  );
}

/** Load something of a box; another owner's takes an admin's powers. */
export function ofBox<T>(box: LiveBox, rest: string, options: Options = {}): Promise<T> {
  return get<T>(`/v1/boxes/${box.id}${rest}`, { ...options, admin: isForeign(box) });
}
