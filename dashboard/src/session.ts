// Who is signed in, and the settings that this browser remembers: theme, language, and whose boxes an admin sees.

import { ApiError, get, post, remove, setToken, whenSignedOut } from "./api/http";
import type { BoxInfo, Session } from "./api/types";
import { Store } from "./store";

export type Theme = "system" | "light" | "dark";
export type Language = "en" | "zh";

interface SessionState {
  phase: "loading" | "signed-out" | "signed-in" | "unreachable";
  session: Session | null;
  /** Whether the session has ended while it was in use. */
  ended: boolean;
}

interface Preferences {
  theme: Theme;
  language: Language;
  allOwners: boolean;
}

export const sessions = new Store<SessionState>({ phase: "loading", session: null, ended: false });
export const preferences = new Store<Preferences>(remembered());

function remembered(): Preferences {
  const language = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
  const fallback: Preferences = { theme: "system", language, allOwners: true };
  try {
    return { ...fallback, ...JSON.parse(localStorage.getItem("hutch") ?? "{}") };
  } catch {
    return fallback;
  }
}

export function prefer(change: Partial<Preferences>): void {
  preferences.set(change);
  localStorage.setItem("hutch", JSON.stringify(preferences.get()));
  applyPreferences();
}

export function applyPreferences(): void {
  const { theme, language } = preferences.get();
  const root = document.documentElement;
  root.lang = language === "zh" ? "zh-CN" : "en";
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
}

export async function resume(): Promise<void> {
  try {
    begin(await get<Session>("/v1/dashboard/session"));
  } catch (error) {
    const away = error instanceof ApiError && error.status === 0;
    sessions.set({ phase: away ? "unreachable" : "signed-out", session: null });
  }
}

export async function signIn(secret: { key: string } | { code: string }): Promise<void> {
  begin(await post<Session>("/v1/dashboard/session", secret));
}

export async function signOut(): Promise<void> {
  await remove("/v1/dashboard/session").catch(() => undefined);
  leave();
}

/** End every session of this key, in this browser and in all others. */
export async function signOutEverywhere(): Promise<void> {
  await remove("/v1/dashboard/session", { query: { all: true } });
  leave();
}

function leave(): void {
  setToken(null);
  sessions.set({ phase: "signed-out", session: null, ended: false });
}

function begin(session: Session): void {
  setToken(session);
  sessions.set({ phase: "signed-in", session, ended: false });
}

whenSignedOut(() => {
  if (sessions.get().phase !== "signed-in") return;
  setToken(null);
  sessions.set({ phase: "signed-out", session: null, ended: true });
});

/** The signed-in session; only components below the sign-in page use it. */
export function useSession(): Session {
  return sessions.use((state) => state.session)!;
}

/** Whether lists show every owner's things, which only an admin can choose. */
export function seesAll(): boolean {
  return sessions.get().session?.role === "admin" && preferences.get().allOwners;
}

/** Whether the caller needs an admin's powers to look at this box. */
export function isForeign(box: Pick<BoxInfo, "owner">): boolean {
  return box.owner !== sessions.get().session?.owner;
}

export function may(action: "create" | "set_retention" | "takeover" | "destroy" | "change"): boolean {
  const session = sessions.get().session;
  if (!session || session.role === "observer") return false;
  return action === "change" || session.actions.includes(action);
}
