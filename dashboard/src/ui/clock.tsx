// One clock for the whole page: countdowns follow it, and turn amber when less than a minute is left.

import { useSyncExternalStore } from "react";
import { seconds } from "../format";
import { t } from "../i18n";
import { type LiveBox, now } from "../live";

const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;
let tick = 0;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    tick += 1;
    for (const each of listeners) each();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (!listeners.size) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** The server's present time; the component is drawn again each second. */
export function useNow(): number {
  useSyncExternalStore(subscribe, () => tick);
  return now();
}

export function Countdown({ until }: { until: number }) {
  const left = Math.max(0, until - useNow());
  return <span className={`countdown ${left < 60 ? "soon" : ""}`}>{seconds(left)}</span>;
}

export function TimeLeft({ box }: { box: LiveBox }) {
  if (box.remaining_sec === null) return <span className="dim">{t("no end")}</span>;
  return <Countdown until={box.measured_at + box.remaining_sec} />;
}
