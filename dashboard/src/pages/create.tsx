// Make a box: what to ask for, and what policy makes of it before it is made.

import { useEffect, useState } from "react";
import { ApiError, get, post } from "../api/http";
import type { BoxInfo, EffectiveSpec, Profile } from "../api/types";
import { megabytes, seconds } from "../format";
import { t } from "../i18n";
import { navigate } from "../router";
import { may } from "../session";
import { ErrorNotice, Facts, Field, Notice, Select, useLoaded } from "../ui/basics";
import { ActionDialog } from "../ui/dialog";

interface Form {
  name: string;
  profile: string;
  provider: string;
  image: string;
  network: string;
  retention: string;
  cpus: string;
  memory_mb: string;
  disk_mb: string;
  pids: string;
  idle_timeout_sec: string;
  ttl_sec: string;
}

const BLANK: Form = {
  name: "", profile: "", provider: "", image: "", network: "", retention: "", cpus: "", memory_mb: "", disk_mb: "",
  pids: "", idle_timeout_sec: "", ttl_sec: "",
};
const NUMBERS: ReadonlySet<string> = new Set(["cpus", "memory_mb", "disk_mb", "pids", "idle_timeout_sec", "ttl_sec"]);

/** Only what was asked for: the profile decides the rest. */
function asSpec(form: Form): Record<string, string | number> {
  const given = Object.entries(form).filter(([, value]) => value.trim() !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, NUMBERS.has(name) ? Number(value) : value.trim()]));
}

export function CreateBox({ onClose }: { onClose: () => void }) {
  const [form, setForm] = useState(BLANK);
  const profiles = useLoaded("profiles", (signal) => get<{ default: string; profiles: Profile[] }>("/v1/profiles", { signal }));
  const providers = useLoaded("providers", (signal) => get<{ providers: { provider: string }[] }>("/v1/providers", { signal }));
  const set = (name: keyof Form) => (value: string) => setForm((before) => ({ ...before, [name]: value }));
  const text = (name: keyof Form, label: string, placeholder = "") => (
    <Field label={label}>
      {(id) => (
        <input id={id} value={form[name]} placeholder={placeholder} inputMode={NUMBERS.has(name) ? "decimal" : undefined}
          autoFocus={name === "name"} autoComplete="off" spellCheck={false} onChange={(event) => set(name)(event.target.value)} />
      )}
    </Field>
  );
  const choice = (name: keyof Form, label: string, options: string[], blank: string) => (
    <Field label={label}>
      {(id) => <Select id={id} value={form[name]} onChange={set(name)} options={[["", blank], ...options.map((each): [string, string] => [each, each])]} />}
    </Field>
  );
  return (
    <ActionDialog
      title={t("New box")}
      action={t("Create")}
      onClose={onClose}
      run={async () => {
        const made = await post<BoxInfo>("/v1/boxes", asSpec(form), { query: { wait: false } });
        navigate(`/boxes/${made.id}`);
      }}
    >
      <div className="form">
        {text("name", t("Name"), t("optional"))}
        {choice("profile", t("Profile"), profiles.value?.profiles.map((each) => each.name) ?? [], profiles.value ? t("default: {name}", { name: profiles.value.default }) : t("Loading"))}
        {text("image", t("Image"), "host")}
        {choice("provider", t("Engine"), providers.value?.providers.map((each) => each.provider) ?? [], t("by the profile"))}
        {choice("network", t("Network"), ["off", "on", "allowlist"], t("by the profile"))}
        {may("set_retention") && choice("retention", t("Retention"), ["temporary", "persistent"], t("by the profile"))}
        {text("cpus", t("CPUs"))}
        {text("memory_mb", t("Memory (MB)"))}
        {text("disk_mb", t("Disk (MB)"))}
        {text("pids", t("Processes"))}
        {text("idle_timeout_sec", t("Idle timeout (s)"))}
        {text("ttl_sec", t("Longest life (s)"))}
      </div>
      <Plan form={form} />
    </ActionDialog>
  );
}

function Plan({ form }: { form: Form }) {
  const [plan, setPlan] = useState<{ spec?: EffectiveSpec; error?: unknown }>({});
  const asked = JSON.stringify(asSpec(form));
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => {
      post<EffectiveSpec>("/v1/plan", JSON.parse(asked), { signal: stop.signal }).then(
        (spec) => setPlan({ spec }),
        (error: unknown) => stop.signal.aborted || setPlan({ error }),
      );
    }, 250);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [asked]);
  if (plan.error !== undefined) {
    return plan.error instanceof ApiError ? <Notice tone="warning" title={plan.error.message}>{plan.error.remedy}</Notice> : <ErrorNotice error={plan.error} />;
  }
  const spec = plan.spec;
  if (!spec) return null;
  return (
    <section className="plan" aria-live="polite">
      <h3>{t("What policy makes of it")}</h3>
      <Facts rows={[
        [t("Engine"), `${spec.provider} · ${spec.image}`],
        [t("Limits"), `${spec.limits.cpus} CPU · ${megabytes(spec.limits.memory_mb)} · ${megabytes(spec.limits.disk_mb)} · ${spec.limits.pids} pids`],
        [t("Network"), spec.network],
        [t("Ends"), [spec.idle_timeout_sec ? t("idle for {time}", { time: seconds(spec.idle_timeout_sec) }) : "", spec.ttl_sec ? t("after {time}", { time: seconds(spec.ttl_sec) }) : ""].filter(Boolean).join(", ") || t("no end")],
      ]} />
      <Adjustments spec={spec} />
    </section>
  );
}

export function Adjustments({ spec }: { spec: EffectiveSpec }) {
  if (!spec.adjustments.length) return <p className="dim">{t("Nothing is changed by policy.")}</p>;
  return (
    <ul className="adjustments">
      {spec.adjustments.map((each) => (
        <li key={each.field}>
          <b>{each.field}</b> {each.asked} → <b>{each.given}</b> <span className="dim">{each.reason}</span>
        </li>
      ))}
    </ul>
  );
}
