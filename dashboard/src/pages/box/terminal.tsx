// A terminal in the box. Its bytes go both ways over one WebSocket; a lost connection says so and can be opened again.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal as Screen } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "react";
import { t } from "../../i18n";
import type { LiveBox } from "../../live";
import { isForeign, preferences, useSession } from "../../session";
import { Button, Notice } from "../../ui/basics";
import { withAdoptedStyles } from "../../ui/adopted-styles";
import { useAccess } from "./actions";

type Phase = "opening" | "open" | "ended" | "lost";

const THEMES = {
  dark: { background: "#101214", foreground: "#e3e6e8", cursor: "#8fb0ff", selectionBackground: "#33415e" },
  light: { background: "#fbfbfa", foreground: "#1d2022", cursor: "#2f5fd0", selectionBackground: "#cddafb" },
};

export function Terminal({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const session = useSession();
  const needsAdmin = isForeign(box) || access.held;
  const [asAdmin, setAsAdmin] = useState(false);
  if (session.role === "observer") return <Notice title={t("Observers have no terminal.")}>{t("They see jobs and files, and change nothing.")}</Notice>;
  if (box.elsewhere) return <Notice title={access.blocked} />;
  if (needsAdmin && !asAdmin) {
    if (session.role !== "admin") return <Notice tone="warning" title={access.blocked} />;
    return (
      <Notice tone="warning" title={isForeign(box) ? t("This box belongs to {owner}.", { owner: box.owner }) : access.blocked}
        action={<Button kind="danger" onClick={() => setAsAdmin(true)}>{t("Open an administrator's shell")}</Button>}>
        {t("An administrator's shell takes the lease from nobody. It is logged, and stands in the receipts of the box.")}
      </Notice>
    );
  }
  return <OpenTerminal key={box.id} box={box} admin={needsAdmin} />;
}

function OpenTerminal({ box, admin }: { box: LiveBox; admin: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  const [phase, setPhase] = useState<Phase>("opening");
  const [message, setMessage] = useState("");
  const [round, setRound] = useState(0);
  useEffect(() => {
    setPhase("opening");
    setMessage("");
    const screen = new Screen({
      fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
      fontSize: 13, scrollback: 10_000, cursorBlink: true, theme: THEMES[shade()], screenReaderMode: true,
    });
    const fit = new FitAddon();
    screen.loadAddon(fit);
    withAdoptedStyles(() => screen.open(place.current!));
    fit.fit();
    screen.focus();
    const query = new URLSearchParams({ rows: String(screen.rows), cols: String(screen.cols), ...(admin ? { admin: "true" } : {}) });
    const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/boxes/${box.id}/terminal?${query}`);
    socket.binaryType = "arraybuffer";
    let ended = false;
    socket.onopen = () => setPhase("open");
    socket.onmessage = (event: MessageEvent<ArrayBuffer | string>) => {
      if (typeof event.data !== "string") {
        screen.write(new Uint8Array(event.data));
        return;
      }
      ended = true;
      const { exit_code: code, signal } = JSON.parse(event.data) as { exit_code: number | null; signal: number | null };
      setMessage(code === null ? t("ended by signal {number}", { number: signal ?? 0 }) : t("ended with exit code {number}", { number: code }));
    };
    socket.onclose = (event) => {
      setPhase(ended ? "ended" : "lost");
      if (!ended && event.reason) setMessage(event.reason);
    };
    const send = (data: string | Uint8Array<ArrayBuffer>) => socket.readyState === WebSocket.OPEN && socket.send(data);
    const encoder = new TextEncoder();
    screen.onData((text) => send(encoder.encode(text)));
    screen.onBinary((text) => send(Uint8Array.from(text, (each) => each.charCodeAt(0))));
    screen.onResize(({ rows, cols }) => send(JSON.stringify({ rows, cols })));
    const resize = new ResizeObserver(() => fit.fit());
    resize.observe(place.current!);
    const unfollow = preferences.subscribe(() => {
      screen.options.theme = THEMES[shade()];
    });
    return () => {
      unfollow();
      resize.disconnect();
      socket.onclose = null;
      socket.onmessage = null;
      socket.close();
      screen.dispose();
    };
  }, [box.id, admin, round]);
  return (
    <div className="terminal">
      {admin && <Notice tone="warning" title={t("Administrator's shell")}>{t("This is logged, and stands in its receipts.")}</Notice>}
      {(phase === "ended" || phase === "lost") && (
        <Notice tone={phase === "lost" ? "warning" : "info"} title={phase === "lost" ? t("The connection to the terminal was lost.") : t("The terminal has ended.")}
          action={<Button kind="primary" onClick={() => setRound((before) => before + 1)}>{t("Open another")}</Button>}>
          {message}
        </Notice>
      )}
      <div className="screen" ref={place} role="group" aria-label={t("Terminal")} data-phase={phase} />
    </div>
  );
}

function shade(): "dark" | "light" {
  const chosen = preferences.get().theme;
  if (chosen !== "system") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
