// The profiles that this key may use, as the configuration resolves them.

import { get } from "../api/http";
import type { Limits, Profile } from "../api/types";
import { megabytes, seconds } from "../format";
import { t, word } from "../i18n";
import { Facts, Loaded, Panel, Tag, useLoaded } from "../ui/basics";

export function Profiles() {
  const loaded = useLoaded("profiles", (signal) => get<{ default: string; profiles: Profile[] }>("/v1/profiles", { signal }));
  return (
    <>
      <h1>{t("Profiles")}</h1>
      <Loaded of={loaded}>
        {(found) => <div className="grid three">{found.profiles.map((each) => <OneProfile key={each.name} profile={each} isDefault={each.name === found.default} />)}</div>}
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
