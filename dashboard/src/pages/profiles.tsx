// The profiles that this key may use, as the configuration resolves them, and how much of each quota is used.

import type { ReactNode } from "react";
import { get } from "../api/http";
import type { Limits, Profile, Quota } from "../api/types";
import { megabytes, seconds } from "../format";
import { t, word } from "../i18n";
import { live, type LiveBox } from "../live";
import { seesAll } from "../session";
import { Empty, Facts, Loaded, Panel, Tag, useLoaded } from "../ui/basics";
import { Table } from "../ui/table";
import { Meter } from "./boxes";

interface Found { default: string; profiles: Profile[]; quotas: Record<string, Quota> }

export function Profiles() {
  const loaded = useLoaded("profiles", (signal) => get<Found>("/v1/profiles", { admin: seesAll(), signal }));
  return (
    <>
      <h1>{t("Profiles")}</h1>
      <Loaded of={loaded}>
        {(found) => <>
          <div className="grid three">{found.profiles.map((each) => <OneProfile key={each.name} profile={each} isDefault={each.name === found.default} />)}</div>
          <Quotas quotas={found.quotas} />
        </>}
      </Loaded>
    </>
  );
}

function OneProfile({ profile, isDefault }: { profile: Profile; isDefault: boolean }) {
  const limits = profile.limits as Limits;
  const maxima = Object.entries((profile.maxima ?? {}) as Record<string, number | null>).filter(([, value]) => value !== null);
  const locked = (profile.locked ?? []) as string[];
  return (
    <Panel title={profile.name} side={isDefault ? <Tag tone="good">{t("default")}</Tag> : null}>
      <p className="dim">{String(profile.description ?? "")}</p>
      <Facts rows={[
        [t("Limits"), `${limits.cpus} CPU · ${megabytes(limits.memory_mb)} · ${megabytes(limits.disk_mb)} · ${limits.pids} pids`],
        [t("Command timeout"), seconds(limits.timeout_sec)],
        [t("Network"), String(profile.network)],
        [t("Root"), profile.read_only_root ? t("read-only") : t("writable")],
        [t("Idle timeout"), profile.idle_timeout_sec ? seconds(Number(profile.idle_timeout_sec)) : t("no end")],
        [t("Retention"), word(String(profile.retention))],
        [t("Isolation"), `${String(profile.min_isolation)}${profile.strict ? ` (${t("strict")})` : ""}`],
        [t("At most"), maxima.map(([name, value]) => `${name} ${value}`).join(", ")],
        [t("Locked"), locked.join(", ")],
      ]} />
    </Panel>
  );
}

/** Owners with a quota, their own or everybody's, and what their boxes use of it. */
function Quotas({ quotas }: { quotas: Record<string, Quota> }) {
  const boxes = live.use((state) => state.boxes);
  const all = [...boxes.values()];
  const { "*": others, ...own } = quotas;
  const owners = others ? new Set([...Object.keys(own), ...all.map((box) => box.owner)]) : Object.keys(own);
  const rows = [...owners].sort().map((owner) => ({ owner, quota: own[owner] ?? others! }))
    .filter(({ quota }) => Object.values(quota).some((limit) => limit > 0));
  return (
    <Panel title={t("Quotas")}>
      {rows.length === 0 ? <Empty title={t("No quota is set.")}>{t("A quota bounds what all boxes of an owner use together; hutch.toml holds it.")}</Empty> : (
        <Table
          label={t("Quotas")}
          columns={[t("Owner"), t("Boxes"), t("CPUs"), t("Memory"), t("Disk"), t("Volumes"), t("Skills")].map((title) => ({ title, className: "nowrap" }))}
          rows={rows.map(({ owner, quota }) => ({ key: owner, cells: [owner, ...usedOf(quota, all.filter((box) => box.owner === owner))] }))}
        />
      )}
    </Panel>
  );
}

function usedOf(quota: Quota, boxes: LiveBox[]): ReactNode[] {
  const sum = (of: (limits: Limits) => number) => boxes.reduce((total, box) => total + of(box.spec.limits), 0);
  const share = (used: number, limit: number, show: (value: number) => string) =>
    limit ? <Meter share={used / limit}>{show(used)} / {show(limit)}</Meter> : <span className="dim">{show(used)}</span>;
  const kept = (limit: number) => limit ? t("at most {count}", { count: limit }) : <span className="dim">{t("no limit")}</span>;
  return [
    share(boxes.length, quota.boxes, String),
    share(sum((limits) => limits.cpus), quota.cpus, (value) => String(+value.toFixed(1))),
    share(sum((limits) => limits.memory_mb), quota.memory_mb, megabytes),
    share(sum((limits) => limits.disk_mb), quota.disk_mb, megabytes),
    <>{kept(quota.volumes)}{quota.volume_mb ? `, ${megabytes(quota.volume_mb)}` : ""}</>,
    kept(quota.skills),
  ];
}
