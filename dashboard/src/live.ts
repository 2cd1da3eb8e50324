// The live picture of the server: one stream that is opened once, reconnects by itself, and feeds every page.

import { ApiError, messages } from "./api/http";
import type { BoxEvent, BoxInfo, LiveMessage, Numbers, Question, Sample, Status, Usage } from "./api/types";
import { seesAll } from "./session";
import { Store } from "./store";

export const EVENTS_KEPT = 300;
const SAMPLES_KEPT = 150;
const LONGEST_PAUSE = 15_000;
const SILENCE = 20_000;

/** A box, and the moment of the server's clock for which its remaining time was given. */
export interface LiveBox extends BoxInfo {
  measured_at: number;
}

export interface Usages {
  usage: Usage;
  /** Share of one CPU since the last reading. */
  cpu: number | null;
}

interface LiveState {
  connection: "connecting" | "live" | "lost";
  why: string;
  status: Status | null;
  /** When the server started, by its own clock. */
  started_at: number;
  boxes: ReadonlyMap<string, LiveBox>;
  /** Why boxes are gone, for pages that still show them. */
  gone: ReadonlyMap<string, string>;
  events: readonly BoxEvent[];
  questions: readonly Question[];
  usages: ReadonlyMap<string, Usages>;
  /** How often the server has sent usages; it does so every two seconds. */
  ticks: number;
  numbers: Numbers | null;
  /** The server's numbers over the last minutes, oldest first. */
  samples: readonly Sample[];
  /** The server's clock minus this browser's, in seconds. */
  skew: number;
}

const EMPTY: LiveState = {
  connection: "connecting", why: "", status: null, started_at: 0, boxes: new Map(), gone: new Map(), events: [], questions: [],
  usages: new Map(), ticks: 0, numbers: null, samples: [], skew: 0,
};

export const live = new Store<LiveState>(EMPTY);
let current: AbortController | null = null;

/** Begin again, for another session or another choice of owners. */
export function connect(): void {
  disconnect();
  current = new AbortController();
  live.set(EMPTY);
  void follow(current.signal);
}

export function disconnect(): void {
  current?.abort();
  current = null;
}

export function now(): number {
  return Date.now() / 1000 + live.get().skew;
}

async function follow(signal: AbortSignal): Promise<void> {
  let pause = 500;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener("abort", stop);
    // A connection whose other end has vanished is noticed by its silence.
    let alarm = setTimeout(stop, SILENCE);
    let first = true;
    try {
      for await (const text of messages("/v1/dashboard/live", { signal: attempt.signal, admin: seesAll() })) {
        clearTimeout(alarm);
        alarm = setTimeout(stop, SILENCE);
        take(JSON.parse(text) as LiveMessage, first);
        first = false;
        pause = 500;
      }
    } catch (error) {
      if (signal.aborted) return;
      live.set({ why: error instanceof ApiError ? error.message : "" });
    } finally {
      clearTimeout(alarm);
      signal.removeEventListener("abort", stop);
      attempt.abort();
    }
    if (signal.aborted) return;
    live.set({ connection: "lost" });
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

let numbered = 0;

function take(message: LiveMessage, first: boolean): void {
  const state = live.get();
  const change: Partial<LiveState> = { connection: "live", why: "" };
  change.skew = message.now - Date.now() / 1000;
  if (first || message.boxes.length || message.gone.length) {
    const boxes = new Map(first ? [] : state.boxes);
    for (const id of message.gone) boxes.delete(id);
    for (const box of message.boxes) boxes.set(box.id, { ...box, measured_at: message.now });
    change.boxes = boxes;
  }
  // The stream sends events before the store numbers them, so they are numbered here. A stream that is opened again
  // begins with those of the last minutes.
  const newest = state.events[0]?.at ?? 0;
  const events = message.events.filter((event) => !first || event.at > newest).map((event) => ({ ...event, seq: (numbered += 1) }));
  if (events.length) {
    change.events = [...events].reverse().concat(state.events).slice(0, EVENTS_KEPT);
    const ended = events.filter((event) => event.kind === "gone");
    if (ended.length) {
      const gone = new Map(state.gone);
      for (const event of ended) gone.set(event.box_id, event.reason);
      change.gone = new Map([...gone].slice(-EVENTS_KEPT));
    }
  }
  if (message.status) {
    change.status = message.status;
    change.started_at = message.now - message.status.uptime_sec;
  }
  if (message.questions) change.questions = message.questions;
  if (Object.keys(message.usages).length) {
    change.usages = measured(state, message);
    change.ticks = state.ticks + 1;
  }
  if (message.numbers) {
    change.numbers = message.numbers;
    change.samples = (first ? [] : state.samples).concat(message.numbers.samples).slice(-SAMPLES_KEPT);
  }
  live.set(change);
}

const read = new Map<string, { at: number; seconds: number }>();

function measured(state: LiveState, message: LiveMessage): Map<string, Usages> {
  const found = new Map<string, Usages>();
  for (const [id, usage] of Object.entries(message.usages)) {
    const seconds = usage.cpu_user_sec + usage.cpu_system_sec;
    const before = read.get(id);
    const passed = before ? message.now - before.at : 0;
    const cpu = before && passed > 0.5 ? Math.max(0, (seconds - before.seconds) / passed) : state.usages.get(id)?.cpu ?? null;
    if (!before || passed > 0.5) read.set(id, { at: message.now, seconds });
    found.set(id, { usage, cpu });
  }
  for (const id of read.keys()) if (!found.has(id)) read.delete(id);
  return found;
}
