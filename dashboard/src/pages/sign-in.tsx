// Sign in with a key, or by a one-time link whose code stands behind the # of the address.

import { type FormEvent, useEffect, useRef, useState } from "react";
import { t } from "../i18n";
import { navigate } from "../router";
import { sessions, signIn } from "../session";
import { Button, ErrorNotice, Loading, Notice } from "../ui/basics";
import { Brand } from "../ui/icons";

export function SignIn() {
  const ended = sessions.use((state) => state.ended);
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(() => location.hash.length > 1);
  const begun = useRef(false);
  useEffect(() => {
    const code = location.hash.slice(1);
    if (!code || begun.current) return;
    begun.current = true;
    // The code is used up, and must not stay in the history.
    history.replaceState(null, "", location.pathname);
    signIn({ code }).then(
      () => navigate("/", true),
      (failure: unknown) => {
        setError(failure);
        setBusy(false);
      },
    );
  }, []);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await signIn({ key: key.trim() });
      if (location.pathname === "/sign-in") navigate("/", true);
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="alone">
      <form className="sign-in" onSubmit={(event) => void submit(event)}>
        <h1>
          <span className="brand"><Brand size={30} />Hutch</span>
        </h1>
        <p className="dim">{t("Boxes for AI agents: see what they do, and take over.")}</p>
        {ended && <Notice tone="warning" title={t("You were signed out.")}>{t("The session has ended, or its key was revoked.")}</Notice>}
        {busy && !key ? (
          <Loading rows={2} />
        ) : (
          <>
            <label htmlFor="key">{t("Key")}</label>
            <input
              id="key"
              type="password"
              autoComplete="off"
              autoFocus
              spellCheck={false}
              placeholder="hutch_…"
              value={key}
              onChange={(event) => setKey(event.target.value)}
            />
            <Button kind="primary" type="submit" disabled={busy || !key.trim()}>
              {t("Sign in")}
            </Button>
          </>
        )}
        {error !== undefined && <ErrorNotice error={error} />}
        <p className="dim small">
          {t("Or run this on the server's machine for a link that signs you in:")} <code>hutch dashboard</code>
        </p>
      </form>
    </main>
  );
}
