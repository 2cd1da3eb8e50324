// The keys that open this server: who may do what, made and revoked here.

import { useState } from "react";
import { get, post, remove } from "../api/http";
import type { Key, Profile, Role } from "../api/types";
import { age, moment } from "../format";
import { t } from "../i18n";
import { useSession } from "../session";
import { Button, CopyText, Empty, Field, Loaded, Notice, Select, Tag, useLoaded } from "../ui/basics";
import { useNow } from "../ui/clock";
import { ActionDialog, Dialog } from "../ui/dialog";
import { Table } from "../ui/table";

const ACTIONS = ["create", "set_retention", "takeover", "destroy"];

export function Keys() {
  const session = useSession();
  const now = useNow();
  const [asked, setAsked] = useState<"" | "create" | Key>("");
  const [made, setMade] = useState<{ key: Key; text: string }>();
  const [revoked, setRevoked] = useState(false);
  const loaded = useLoaded("keys", (signal) => (session.role === "admin" ? get<{ keys: Key[] }>("/v1/keys", { signal }) : Promise.resolve({ keys: [] })));
  if (session.role !== "admin") {
    return <><h1>{t("Keys")}</h1><Notice tone="warning" title={t("Your key does not allow this.")}>{t("Only administrators see keys.")}</Notice></>;
  }
  return (
    <>
      <div className="bar">
        <h1>{t("Keys")}</h1>
        <span className="grow" />
        <label className="check"><input type="checkbox" checked={revoked} onChange={(event) => setRevoked(event.target.checked)} />{t("Show revoked")}</label>
        <Button kind="primary" onClick={() => setAsked("create")}>{t("New key")}</Button>
      </div>
      <Loaded of={loaded}>
        {({ keys }) => {
          const shown = keys.filter((key) => revoked || key.revoked_at === null).reverse();
          return shown.length === 0 ? <Empty title={t("There is no key.")} /> : (
            <Table
              label={t("Keys")}
              columns={[{ title: t("Key") }, { title: t("Role") }, { title: t("Owner"), className: "break" }, { title: t("Rights") }, { title: t("Made"), className: "nowrap" }, { title: <span className="hidden">{t("Actions")}</span>, className: "end" }]}
              rows={shown.map((key) => ({
                key: key.id,
                className: key.revoked_at === null ? "" : "ended",
                cells: [
                  <><span className="strong break">{key.name || t("unnamed")}</span><br /><small className="mono dim">{key.id}</small></>,
                  <Tag tone={key.role === "admin" ? "amber" : ""}>{t(ROLES[key.role])}</Tag>,
                  key.owner,
                  rightsOf(key),
                  <span title={moment(key.created_at)}>{age(key.created_at, now)}</span>,
                  key.revoked_at !== null ? <Tag tone="bad">{t("revoked")}</Tag> : (
                    <Button kind="danger" onClick={() => setAsked(key)} blocked={key.id === session.key_id && t("You are signed in with it.")}>{t("Revoke")}</Button>
                  ),
                ],
              }))}
            />
          );
        }}
      </Loaded>
      {asked === "create" && <CreateKey onClose={() => setAsked("")} done={(key) => { setMade(key); loaded.reload(); }} />}
      {typeof asked === "object" && (
        <ActionDialog title={t("Revoke {name}", { name: asked.name || asked.id })} action={t("Revoke")} danger onClose={() => setAsked("")}
          run={async () => { await remove(`/v1/keys/${asked.id}`); loaded.reload(); }}>
          <p>{t("Programs and browsers that use it are refused from now on. This cannot be undone.")}</p>
        </ActionDialog>
      )}
      {made && (
        <Dialog title={t("The new key")} onClose={() => setMade(undefined)}>
          <div className="dialog-body">
            <Notice tone="warning" title={t("Copy it now: it is shown only this once.")} />
            <p className="secret"><CopyText text={made.text} /></p>
          </div>
        </Dialog>
      )}
    </>
  );
}

const ROLES = { admin: "administrator", user: "user", observer: "observer" } as const;

function rightsOf(key: Key): string {
  if (key.role === "admin") return t("everything");
  if (key.role === "observer") return t("look only");
  const { profiles, actions, maxima } = key.rights;
  const most = Object.entries(maxima).filter(([, value]) => value !== null).map(([name, value]) => `${name} ≤ ${value}`);
  const parts = [profiles && `${t("profiles")}: ${profiles.join(", ")}`, actions && `${t("actions")}: ${actions.join(", ") || t("none")}`, most.join(", ")];
  return parts.filter(Boolean).join("; ") || t("its owner's");
}

function CreateKey({ onClose, done }: { onClose: () => void; done: (made: { key: Key; text: string }) => void }) {
  const [role, setRole] = useState<Role>("user");
  const [owner, setOwner] = useState("local");
  const [name, setName] = useState("");
  const [actions, setActions] = useState(ACTIONS);
  const [profiles, setProfiles] = useState<string[]>([]);
  const [memory, setMemory] = useState("");
  const known = useLoaded("profiles", (signal) => get<{ profiles: Profile[] }>("/v1/profiles", { signal }));
  const toggled = (all: string[], one: string) => (all.includes(one) ? all.filter((each) => each !== one) : [...all, one]);
  const run = async () => {
    const rights: Record<string, unknown> = {};
    if (role === "user") {
      if (actions.length < ACTIONS.length) rights.actions = actions;
      if (profiles.length) rights.profiles = profiles;
      if (memory) rights.maxima = { memory_mb: Number(memory) };
    }
    done(await post("/v1/keys", { role, owner, name, rights }));
  };
  return (
    <ActionDialog title={t("New key")} action={t("Create")} onClose={onClose} run={run}>
      <div className="form">
        <Field label={t("Name")} hint={t("For people: who or what uses it.")}>{(id) => <input id={id} autoFocus value={name} onChange={(event) => setName(event.target.value)} />}</Field>
        <Field label={t("Owner")} hint={t("Whose boxes it sees.")}>{(id) => <input id={id} value={owner} onChange={(event) => setOwner(event.target.value)} />}</Field>
        <Field label={t("Role")}>{(id) => <Select id={id} value={role} onChange={(value) => setRole(value as Role)} options={[["user", t("user")], ["observer", t("observer")], ["admin", t("administrator")]]} />}</Field>
        {role === "user" && <Field label={t("Memory at most (MB)")}>{(id) => <input id={id} inputMode="decimal" value={memory} placeholder={t("optional")} onChange={(event) => setMemory(event.target.value)} />}</Field>}
      </div>
      {role === "user" && <>
        <fieldset><legend>{t("May")}</legend>
          {ACTIONS.map((each) => <label key={each} className="check"><input type="checkbox" checked={actions.includes(each)} onChange={() => setActions((before) => toggled(before, each))} />{each}</label>)}
        </fieldset>
        <fieldset><legend>{t("Profiles: all that its owner has, or only")}</legend>
          {known.value?.profiles.map(({ name: each }) => <label key={each} className="check"><input type="checkbox" checked={profiles.includes(each)} onChange={() => setProfiles((before) => toggled(before, each))} />{each}</label>)}
        </fieldset>
      </>}
    </ActionDialog>
  );
}
