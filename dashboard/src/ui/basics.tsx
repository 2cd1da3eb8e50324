// The small parts of every page: buttons, fields, badges, notices, and the states of something that is being loaded.

import { type ButtonHTMLAttributes, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { ApiError } from "../api/http";
import { t, word } from "../i18n";
import { follow } from "../router";

const RELOAD_PAUSE = 500;

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: "plain" | "primary" | "danger" | "quiet";
  /** Why it cannot be pressed now; shown as its title. */
  blocked?: string | false;
}

export function Button({ kind = "plain", blocked, className = "", ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      className={`button ${kind} ${className}`}
      {...rest}
      disabled={rest.disabled || Boolean(blocked)}
      title={blocked || rest.title}
    />
  );
}

export function Link({ to, children, className, label, current }: {
  to: string; children: ReactNode; className?: string; label?: string; current?: boolean;
}) {
  return (
    <a href={to} onClick={follow} className={className} aria-label={label} aria-current={current ? "page" : undefined}>
      {children}
    </a>
  );
}

/** A row of links that scrolls on narrow screens: keeps the present one in sight. */
export function useShownLink(here: string) {
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    const shown = row.current!;
    const show = () => {
      const link = shown.querySelector<HTMLElement>("[aria-current]");
      if (link) shown.scrollLeft = link.offsetLeft - shown.clientWidth / 3;
    };
    const resized = new ResizeObserver(show);
    resized.observe(shown);
    return () => resized.disconnect();
  }, [here]);
  return row;
}

export function StateBadge({ state }: { state: string }) {
  return (
    <span className={`state ${state}`}>
      <i aria-hidden="true" />
      {word(state)}
    </span>
  );
}

export function Tag({ children, tone = "" }: { children: ReactNode; tone?: string }) {
  return <span className={`tag ${tone}`}>{children}</span>;
}

export function Notice({ tone = "info", title, children, action }: {
  tone?: "info" | "warning" | "error" | "good"; title: ReactNode; children?: ReactNode; action?: ReactNode;
}) {
  return (
    <div className={`notice ${tone}`} role={tone === "error" ? "alert" : "status"}>
      <div>
        <strong>{title}</strong>
        {children && <div className="notice-text">{children}</div>}
      </div>
      {action}
    </div>
  );
}

export function ErrorNotice({ error, retry }: { error: unknown; retry?: () => void }) {
  const refusal = error instanceof ApiError ? error : null;
  const forbidden = refusal?.status === 403;
  return (
    <Notice
      tone={forbidden ? "warning" : "error"}
      title={forbidden ? t("Your key does not allow this.") : refusal?.message ?? t("Something went wrong in this page.")}
      action={retry && !forbidden && <Button onClick={retry}>{t("Try again")}</Button>}
    >
      {forbidden ? refusal?.message : refusal?.remedy || (refusal ? null : String(error))}
    </Notice>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <div className="empty-mark" aria-hidden="true" />
      <strong>{title}</strong>
      {children && <div>{children}</div>}
    </div>
  );
}

export function Loading({ rows = 3 }: { rows?: number }) {
  return (
    <div className="loading" role="status" aria-label={t("Loading")}>
      {Array.from({ length: rows }, (_, row) => (
        <span key={row} />
      ))}
    </div>
  );
}

/** Something loaded. `key` names it: another one is loaded from the start. A new `version` loads it again and keeps what is shown until then. */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>, version: string | number = 0) {
  const [state, setState] = useState<{ key: string; value?: T; error?: unknown }>({ key: "" });
  const latest = useRef(load);
  latest.current = load;
  const seen = useRef(version);
  const start = useRef<() => void>(() => undefined);
  useEffect(() => {
    const stop = new AbortController();
    let running = false;
    let again = false;
    const run = () => {
      again = running;
      if (running) return;
      running = true;
      const begun = performance.now();
      latest.current(stop.signal).then(
        (value) => stop.signal.aborted || setState({ key, value }),
        (error: unknown) => stop.signal.aborted || setState((before) => ({ ...(before.key === key ? before : {}), key, error })),
      ).finally(() => {
        // However often it changes, it is loaded at most once in this time.
        setTimeout(() => {
          running = false;
          if (again && !stop.signal.aborted) run();
        }, Math.max(0, begun + RELOAD_PAUSE - performance.now()));
      });
    };
    start.current = run;
    run();
    return () => stop.abort();
  }, [key]);
  useEffect(() => {
    if (seen.current === version) return;
    seen.current = version;
    start.current();
  }, [version]);
  const fits = state.key === key;
  return { value: fits ? state.value : undefined, error: fits ? state.error : undefined, reload: () => start.current() };
}

export function Loaded<T>({ of, children, rows }: {
  of: { value?: T; error?: unknown; reload: () => void }; children: (value: T) => ReactNode; rows?: number;
}) {
  if (of.value !== undefined) {
    return (
      <>
        {of.error !== undefined && <ErrorNotice error={of.error} retry={of.reload} />}
        {children(of.value)}
      </>
    );
  }
  return of.error !== undefined ? <ErrorNotice error={of.error} retry={of.reload} /> : <Loading rows={rows} />;
}

export function Field({ label, hint, children }: { label: string; hint?: ReactNode; children: (id: string) => ReactNode }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children(id)}
      {hint && <small>{hint}</small>}
    </div>
  );
}

export function Select({ id, value, onChange, options, label }: {
  id?: string; value: string; onChange: (value: string) => void; options: [value: string, label: string][]; label?: string;
}) {
  return (
    <select id={id} aria-label={label} value={value} onChange={(event) => onChange(event.target.value)}>
      {options.map(([each, shown]) => (
        <option key={each} value={each}>
          {shown}
        </option>
      ))}
    </select>
  );
}

export function Panel({ title, side, children, className = "" }: {
  title?: ReactNode; side?: ReactNode; children: ReactNode; className?: string;
}) {
  return (
    <section className={`panel ${className}`}>
      {(title || side) && (
        <header>
          <h2>{title}</h2>
          <div className="side">{side}</div>
        </header>
      )}
      <div className="panel-body">{children}</div>
    </section>
  );
}

export function Facts({ rows }: { rows: [label: string, value: ReactNode][] }) {
  return (
    <dl className="facts">
      {rows.filter(([, value]) => value !== null && value !== "").map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function CopyText({ text, shown }: { text: string; shown?: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <button
      type="button"
      className="copy mono"
      title={t("Copy")}
      onClick={() => void navigator.clipboard?.writeText(text).then(() => setCopied(true))}
    >
      {copied ? t("copied") : shown ?? text}
    </button>
  );
}
