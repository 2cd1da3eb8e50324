// Paths of the dashboard: one page, whose address says what it shows.

import { type MouseEvent, useSyncExternalStore } from "react";

const listeners = new Set<() => void>();
const announce = () => listeners.forEach((listener) => listener());
window.addEventListener("popstate", announce);

export function navigate(path: string, replace = false): void {
  if (path === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", path);
  announce();
  window.scrollTo(0, 0);
}

/** The parts of the present path, decoded. */
export function usePath(): string[] {
  const path = useSyncExternalStore(subscribe, () => location.pathname);
  return path.split("/").filter(Boolean).map(decoded);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Follow a link inside the page; new tabs and modified clicks stay the browser's. */
export function follow(event: MouseEvent<HTMLAnchorElement>): void {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const { pathname, search } = event.currentTarget;
  navigate(pathname + search);
}
