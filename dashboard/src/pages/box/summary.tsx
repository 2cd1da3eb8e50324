// What a box is: its clocks, its holder, and its effective spec with everything that policy changed.

import { megabytes, moment, seconds } from "../../format";
import { t } from "../../i18n";
import type { LiveBox } from "../../live";
import { Facts, Panel, Tag } from "../../ui/basics";
import { Countdown, TimeLeft } from "../../ui/clock";
import { UsageCell } from "../boxes";
import { Adjustments } from "../create";

export function Summary({ box }: { box: LiveBox }) {
  const { spec, lease } = box;
  const limits = spec.limits;
  return (
    <div className="grid two">
      <Panel title={t("Now")}>
        <Facts rows={[
          [t("Held by"), lease ? <>{lease.holder} {lease.expires_at > 0 && <>(<Countdown until={lease.expires_at} />)</>}</> : t("nobody")],
          [t("Time left"), <TimeLeft box={box} />],
          [t("Usage"), <span className="usage"><UsageCell box={box} /></span>],
          [t("Made"), moment(box.created_at)],
          [t("Last used"), moment(box.used_at)],
          [t("Outlives its server by"), seconds(box.grace_sec)],
          [t("Reason"), box.reason],
        ]} />
      </Panel>
      <Panel title={t("What policy changed")}>
        <Adjustments spec={spec} />
      </Panel>
      <Panel title={t("Limits")}>
        <Facts rows={[
          [t("CPUs"), String(limits.cpus)],
          [t("Memory"), megabytes(limits.memory_mb)],
          [t("Disk"), megabytes(limits.disk_mb)],
          [t("Processes"), String(limits.pids)],
          [t("Open files"), String(limits.open_files)],
          [t("Command timeout"), seconds(limits.timeout_sec) + (limits.max_timeout_sec ? ` (${t("at most {time}", { time: seconds(limits.max_timeout_sec) })})` : "")],
          [t("Idle timeout"), spec.idle_timeout_sec ? seconds(spec.idle_timeout_sec) : t("no end")],
          [t("Longest life"), spec.ttl_sec ? seconds(spec.ttl_sec) : t("no end")],
        ]} />
      </Panel>
      <Panel title={t("Effective spec")}>
        <Facts rows={[
          [t("Profile"), spec.profile],
          [t("Engine"), `${box.provider} (${spec.min_isolation})`],
          [t("Image"), <span className="mono break">{spec.image}</span>],
          [t("User"), spec.user],
          [t("Working directory"), <span className="mono">{spec.workdir}</span>],
          [t("Workspace"), `${spec.workspace.source} (${spec.workspace.mode})`],
          [t("Root"), spec.read_only_root ? t("read-only") : t("writable")],
          [t("Network"), [spec.network, ...spec.allow_private].join(", ")],
          [t("Retention"), t(spec.retention)],
          [t("Skills"), spec.skills],
          [t("Ports"), spec.ports.join(", ")],
          [t("Mounts"), spec.mounts.map((mount) => `${mount.source} → ${mount.target} (${mount.mode})`).join(", ")],
          [t("Environment"), Object.entries(spec.env).map(([name, value]) => `${name}=${value}`).join(" ")],
          [t("Secrets"), Object.keys(spec.secrets).join(", ")],
          [t("Labels"), Object.entries(spec.labels).length ? <>{Object.entries(spec.labels).map(([name, value]) => <Tag key={name}>{name}={value}</Tag>)}</> : ""],
        ]} />
      </Panel>
    </div>
  );
}
