// All boxes, live: found by any word, drawn only as far as one can see.

import { type ReactNode, useMemo, useState } from "react";
import { age, boxTitle, megabytes } from "../format";
import { t, word } from "../i18n";
import { live, type LiveBox } from "../live";
import { may, seesAll } from "../session";
import { Button, Empty, Link, Loading, Select, StateBadge } from "../ui/basics";
import { Countdown, TimeLeft, useNow } from "../ui/clock";
import { Rows } from "../ui/rows";
import { CreateBox } from "./create";

const ROW = 52;
export const STATES = ["creating", "running", "paused", "stopping", "stopped", "restoring", "error", "unknown"];

export function Boxes() {
  const boxes = live.use((state) => state.boxes);
  const connection = live.use((state) => state.connection);
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const [owner, setOwner] = useState("");
  const [creating, setCreating] = useState(false);
  const all = useMemo(() => [...boxes.values()].sort((one, other) => other.created_at - one.created_at), [boxes]);
  const owners = useMemo(() => [...new Set(all.map((box) => box.owner))].sort(), [all]);
  const shown = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((box) =>
      (!state || box.state === state) && (!owner || box.owner === owner) && words.every((each) => haystack(box).includes(each)));
  }, [all, text, state, owner]);
  const filtered = Boolean(text || state || owner);
  return (
    <div className="full">
      <div className="bar">
        <h1>{t("Boxes")} <small className="dim">{filtered ? t("{shown} of {all}", { shown: shown.length, all: all.length }) : all.length}</small></h1>
        <input type="search" aria-label={t("Search boxes")} placeholder={t("Search by name, id, owner, image, holder…")} value={text} onChange={(event) => setText(event.target.value)} />
        <Select label={t("State")} value={state} onChange={setState} options={[["", t("every state")], ...STATES.map((each): [string, string] => [each, word(each)])]} />
        {seesAll() && <Select label={t("Owner")} value={owner} onChange={setOwner} options={[["", t("every owner")], ...owners.map((each): [string, string] => [each, each])]} />}
        <Button kind="primary" onClick={() => setCreating(true)} blocked={!may("create") && t("Your key may not create boxes.")}>{t("New box")}</Button>
      </div>
      {connection === "connecting" ? <Loading rows={6} /> : (
        <Rows
          label={t("Boxes")}
          className="boxes"
          height={ROW}
          items={shown}
          keyOf={(box) => box.id}
          head={<>
            <span role="columnheader">{t("Box")}</span>
            <span role="columnheader">{t("State")}</span>
            <span role="columnheader">{t("Owner and scope")}</span>
            <span role="columnheader">{t("Held by")}</span>
            <span role="columnheader">{t("Time left")}</span>
            <span role="columnheader">{t("Usage")}</span>
            <span role="columnheader">{t("Made from")}</span>
          </>}
          row={(box) => <BoxRow box={box} />}
          empty={filtered ? <Empty title={t("No box fits this search.")} /> : (
            <Empty title={t("No box yet.")}>{t("Boxes that agents and you make appear here at once.")}</Empty>
          )}
        />
      )}
      {creating && <CreateBox onClose={() => setCreating(false)} />}
    </div>
  );
}

function haystack(box: LiveBox): string {
  return [box.id, box.name, box.owner, box.provider, box.spec.profile, box.spec.image, box.lease?.holder ?? "", ...Object.values(box.spec.labels)]
    .join(" ").toLowerCase();
}

function BoxRow({ box }: { box: LiveBox }) {
  const scope = box.spec.labels.scope;
  return (
    <>
      <span role="cell" className="cell-main">
        <Link to={`/boxes/${box.id}`} className="strong cut">{boxTitle(box)}</Link>
        <small className="dim cut">{box.name && <span className="mono">{box.id.slice(0, 8)} </span>}<Age at={box.created_at} /></small>
      </span>
      <span role="cell" title={box.reason}><StateBadge state={box.state} /></span>
      <span role="cell" className="two-lines">
        <span className="cut">{box.owner}</span>
        {scope && <small className="dim cut" title={scope}>{scope}</small>}
      </span>
      <span role="cell" className="two-lines">
        {box.lease ? <>
          <span className="cut" title={box.lease.holder}>{box.lease.holder}</span>
          {box.lease.expires_at > 0 && <small className="dim"><Countdown until={box.lease.expires_at} /></small>}
        </> : <span className="dim">{t("nobody")}</span>}
      </span>
      <span role="cell"><TimeLeft box={box} /></span>
      <span role="cell" className="two-lines"><UsageCell box={box} /></span>
      <span role="cell" className="two-lines">
        <span className="cut">{box.provider} · {box.spec.profile}</span>
        <small className="dim cut" title={box.spec.image}>{box.spec.image}</small>
      </span>
    </>
  );
}

function Age({ at }: { at: number }) {
  return <>{age(at, useNow())}</>;
}

export function UsageCell({ box }: { box: LiveBox }) {
  const measured = live.use((state) => state.usages.get(box.id));
  const { cpus, memory_mb: memory } = box.spec.limits;
  const peak = measured?.usage.box_memory_peak_mb ?? null;
  const cpu = measured?.cpu ?? null;
  return (
    <>
      <Meter share={cpu === null ? null : cpu / cpus}>{cpu === null ? "–" : `${Math.round(cpu * 100)} %`} / {cpus} CPU</Meter>
      <Meter share={peak === null ? null : peak / memory}>{peak === null ? "–" : megabytes(peak)} / {megabytes(memory)}</Meter>
    </>
  );
}

/** A number of something limited, with a bar that shows how near the limit it is. */
export function Meter({ share, children }: { share: number | null; children: ReactNode }) {
  const full = Math.min(1, share ?? 0);
  return (
    <span className={`meter ${full > 0.9 ? "full" : ""}`}>
      <i aria-hidden="true"><i style={{ width: `${(full * 100).toFixed(0)}%` }} /></i>
      <small>{children}</small>
    </span>
  );
}
