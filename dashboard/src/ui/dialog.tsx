// Dialogs on the browser's own <dialog>, which keeps the focus inside and closes on Escape; and messages in a corner.

import { type ReactNode, useEffect, useRef, useState } from "react";
import { ApiError } from "../api/http";
import { t } from "../i18n";
import { Store } from "../store";
import { Button, ErrorNotice } from "./basics";
import { Icon } from "./icons";

export function Dialog({ title, onClose, children, wide }: {
  title: string; onClose: () => void; children: ReactNode; wide?: boolean;
}) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const shown = element.current;
    shown?.showModal();
    // The browser would choose the button that closes it.
    shown?.querySelector<HTMLElement>("input, select, textarea")?.focus();
    return () => shown?.close();
  }, []);
  return (
    <dialog
      ref={element}
      className={wide ? "wide" : ""}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClose={onClose}
      onMouseDown={(event) => event.target === element.current && onClose()}
    >
      <div className="dialog-inside">
        <header>
          <h2>{title}</h2>
          <Button kind="quiet" aria-label={t("Close")} onClick={onClose}>
            <Icon name="close" />
          </Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** A dialog that does one thing: it stays open with the error if that fails. */
export function ActionDialog({ title, action, danger, children, onClose, run, ready = true }: {
  title: string; action: string; danger?: boolean; children?: ReactNode; onClose: () => void;
  run: () => Promise<unknown>; ready?: boolean;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const act = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await run();
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (ready && !busy) void act();
        }}
      >
        <div className="dialog-body">
          {children}
          {error !== undefined && <ErrorNotice error={error} />}
        </div>
        <footer>
          <Button onClick={onClose}>{t("Cancel")}</Button>
          <Button kind={danger ? "danger" : "primary"} type="submit" disabled={busy || !ready}>
            {busy ? t("Working…") : action}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

interface Toast {
  id: number;
  text: string;
  remedy: string;
  tone: "good" | "error";
}

const toasts = new Store<{ shown: Toast[] }>({ shown: [] });
let numbered = 0;

export function say(text: string, tone: Toast["tone"] = "good", remedy = ""): void {
  const id = (numbered += 1);
  toasts.set({ shown: [...toasts.get().shown.slice(-3), { id, text, tone, remedy }] });
  setTimeout(() => dismiss(id), tone === "error" ? 12_000 : 4000);
}

function dismiss(id: number): void {
  toasts.set({ shown: toasts.get().shown.filter((toast) => toast.id !== id) });
}

/** Run an action and report how it went. */
export async function attempt(done: string, action: () => Promise<unknown>): Promise<boolean> {
  try {
    await action();
    if (done) say(done);
    return true;
  } catch (error) {
    const refusal = error instanceof ApiError ? error : null;
    say(refusal?.message ?? String(error), "error", refusal?.remedy);
    return false;
  }
}

export function Toasts() {
  const shown = toasts.use((state) => state.shown);
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={`toast ${toast.tone}`}>
          <div>
            {toast.text}
            {toast.remedy && <small>{toast.remedy}</small>}
          </div>
          <Button kind="quiet" aria-label={t("Close")} onClick={() => dismiss(toast.id)}>
            <Icon name="close" />
          </Button>
        </div>
      ))}
    </div>
  );
}
