// A value that components follow. One store holds one subject; a change makes a new value.

import { useSyncExternalStore } from "react";

export class Store<T> {
  private listeners = new Set<() => void>();
  constructor(private value: T) {}

  get = (): T => this.value;

  set(change: Partial<T>): void {
    this.value = { ...this.value, ...change };
    for (const listener of this.listeners) listener();
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Follow one part of the value; the component renders again only when that part changes. */
  use<P>(part: (value: T) => P): P {
    return useSyncExternalStore(this.subscribe, () => part(this.value));
  }
}
