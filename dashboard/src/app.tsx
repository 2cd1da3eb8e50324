// The frame of every page: who is signed in, where one can go, whether the picture is live; and which page is shown.

import { Component, type ReactNode, lazy, Suspense, useEffect, useState } from "react";
import { Notice, Button, Link, Loading, useShownLink } from "./ui/basics";
import { ActionDialog, Toasts } from "./ui/dialog";
import { Brand, Icon, type IconName } from "./ui/icons";
import { Palette } from "./ui/palette";
import { useTitle } from "./ui/title";
import { t, type Text, useLanguage } from "./i18n";
import { connect, disconnect, live } from "./live";
import { navigate, usePath } from "./router";
import { prefer, preferences, resume, sessions, signOut, signOutEverywhere, type Theme, useSession } from "./session";
import { Store } from "./store";
import { SignIn } from "./pages/sign-in";
import { Overview } from "./pages/overview";
import { Boxes } from "./pages/boxes";
import { BoxPage } from "./pages/box/page";
import { Approvals } from "./pages/approvals";

const Apps = lazy(() => import("./pages/apps").then((page) => ({ default: page.Apps })));
const Skills = lazy(() => import("./pages/skills").then((page) => ({ default: page.Skills })));
const McpServers = lazy(() => import("./pages/mcp-servers").then((page) => ({ default: page.McpServers })));
const Tools = lazy(() => import("./pages/tools").then((page) => ({ default: page.Tools })));
const Keys = lazy(() => import("./pages/keys").then((page) => ({ default: page.Keys })));
const Audit = lazy(() => import("./pages/audit").then((page) => ({ default: page.Audit })));
const Profiles = lazy(() => import("./pages/profiles").then((page) => ({ default: page.Profiles })));

export const PAGES: { path: string; title: Text; icon: IconName; admin?: boolean }[] = [
  { path: "/", title: "Overview", icon: "overview" },
  { path: "/boxes", title: "Boxes", icon: "boxes" },
  { path: "/apps", title: "Apps", icon: "apps" },
  { path: "/approvals", title: "Approvals", icon: "approvals" },
  { path: "/skills", title: "Skills", icon: "skills" },
  { path: "/mcp-servers", title: "MCP servers", icon: "servers" },
  { path: "/tools", title: "Tools", icon: "tools" },
  { path: "/profiles", title: "Profiles", icon: "profiles" },
  { path: "/audit", title: "Audit", icon: "audit" },
  { path: "/keys", title: "Keys", icon: "keys", admin: true },
];

const palette = new Store({ shown: false });

// From the first moment on: pressed while the session is being asked for, the palette opens with the page.
window.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
  const { phase } = sessions.get();
  if (phase !== "signed-in" && phase !== "loading") return;
  event.preventDefault();
  palette.set({ shown: !palette.get().shown });
});
sessions.subscribe(() => {
  if (sessions.get().phase !== "signed-in") palette.set({ shown: false });
});

export function App() {
  useLanguage();
  const phase = sessions.use((state) => state.phase);
  const [first] = usePath();
  const key = sessions.use((state) => state.session?.key_id);
  const allOwners = preferences.use((state) => state.allOwners);
  useEffect(() => {
    if (phase !== "signed-in") return undefined;
    connect();
    return disconnect;
  }, [phase, key, allOwners]);
  useEffect(() => {
    if (phase === "signed-in" && first === "sign-in") navigate("/", true);
  }, [phase, first]);
  if (phase === "loading") return <main className="alone"><Loading /></main>;
  if (phase === "unreachable") {
    return (
      <main className="alone">
        <Notice tone="error" title={t("The server does not answer.")} action={<Button onClick={() => void resume()}>{t("Try again")}</Button>}>
          {t("It may be starting again. Nothing is lost: boxes go on without it.")}
        </Notice>
      </main>
    );
  }
  if (phase === "signed-out") return <SignIn />;
  return <Shell />;
}

function Shell() {
  const shown = palette.use((state) => state.shown);
  const path = usePath();
  return (
    <div className="shell">
      {!(path[0] === "boxes" && path[1]) && <PageTitle path={path} />}
      <a className="skip" href="#content">{t("Skip to the content")}</a>
      <Sidebar path={path} openPalette={() => palette.set({ shown: true })} />
      <main id="content" tabIndex={-1}>
        <Connection />
        <Boundary at={path.join("/")}>
          <Suspense fallback={<Loading />}>
            <Page path={path} />
          </Suspense>
        </Boundary>
      </main>
      <Toasts />
      {shown && <Palette onClose={() => palette.set({ shown: false })} />}
    </div>
  );
}

function Page({ path }: { path: string[] }) {
  const [first, second, third] = path;
  switch (first) {
    case undefined: return <Overview />;
    case "boxes": return second ? <BoxPage key={second} id={second} tab={third ?? "summary"} /> : <Boxes />;
    case "apps": return <Apps id={second} />;
    case "approvals": return <Approvals />;
    case "skills": return <Skills name={second} />;
    case "mcp-servers": return <McpServers name={second} />;
    case "tools": return <Tools />;
    case "keys": return <Keys />;
    case "audit": return <Audit chain={second} />;
    case "profiles": return <Profiles />;
    default: return <Notice tone="warning" title={t("There is no such page.")}><Link to="/">{t("Overview")}</Link></Notice>;
  }
}

function Sidebar({ path, openPalette }: { path: string[]; openPalette: () => void }) {
  const session = useSession();
  const waiting = live.use((state) => state.questions.length);
  const here = `/${path[0] ?? ""}`;
  const nav = useShownLink(here);
  return (
    <aside className="sidebar">
      <Link to="/" className="brand">
        <Brand />
        Hutch
      </Link>
      <nav aria-label={t("Pages")} ref={nav}>
        {PAGES.filter((page) => !page.admin || session.role === "admin").map((page) => (
          <a
            key={page.path}
            href={page.path}
            aria-current={here === page.path ? "page" : undefined}
            onClick={(event) => {
              event.preventDefault();
              navigate(page.path);
            }}
          >
            <Icon name={page.icon} size={17} />
            <span>{t(page.title)}</span>
            {page.path === "/approvals" && waiting > 0 && <b className="count">{waiting}</b>}
          </a>
        ))}
      </nav>
      <div className="sidebar-end">
        <Button className="find" onClick={openPalette}>
          <Icon name="search" /> <span>{t("Find anything")}</span> <kbd aria-hidden="true">Ctrl K</kbd>
        </Button>
        <Account />
      </div>
    </aside>
  );
}

function Account() {
  const session = useSession();
  const { theme, language, allOwners } = preferences.use((state) => state);
  const [leaving, setLeaving] = useState(false);
  return (
    <details className="account">
      <summary>
        <span className="avatar" aria-hidden="true">{(session.name || session.owner).slice(0, 1).toUpperCase()}</span>
        <span className="account-who">
          <span className="account-name">{session.name || session.key_id}</span>
          <small className="cut">{t(ROLES[session.role])} · {session.owner}</small>
        </span>
      </summary>
      <div className="account-menu">
        {session.role === "admin" && (
          <label className="check">
            <input type="checkbox" checked={allOwners} onChange={(event) => prefer({ allOwners: event.target.checked })} />
            {t("Show all owners")}
          </label>
        )}
        <label>
          {t("Theme")}
          <select value={theme} onChange={(event) => prefer({ theme: event.target.value as Theme })}>
            <option value="system">{t("as the system")}</option>
            <option value="light">{t("light")}</option>
            <option value="dark">{t("dark")}</option>
          </select>
        </label>
        <label>
          {t("Language")}
          <select value={language} onChange={(event) => prefer({ language: event.target.value as "en" | "zh" })}>
            <option value="en">English</option>
            <option value="zh">中文</option>
          </select>
        </label>
        <Button onClick={() => void signOut()}>{t("Sign out")}</Button>
        <Button kind="danger" onClick={() => setLeaving(true)}>{t("Sign out everywhere…")}</Button>
      </div>
      {leaving && (
        <ActionDialog title={t("Sign out everywhere")} action={t("Sign out everywhere")} danger onClose={() => setLeaving(false)} run={signOutEverywhere}>
          <p>{t("Every browser that signed in with this key is signed out, also this one. The key itself goes on working.")}</p>
        </ActionDialog>
      )}
    </details>
  );
}

const ROLES = { admin: "administrator", user: "user", observer: "observer" } as const;

function Connection() {
  const connection = live.use((state) => state.connection);
  const why = live.use((state) => state.why);
  if (connection !== "lost") return null;
  return (
    <Notice tone="warning" title={t("Disconnected: what you see is the last known state.")}>
      {why} {t("Trying again by itself. Boxes and jobs go on meanwhile.")}
    </Notice>
  );
}

/** The title of every page but a box's, which has the name of the box. */
function PageTitle({ path }: { path: string[] }) {
  const title = PAGES.find((page) => page.path === `/${path[0] ?? ""}`)?.title;
  useTitle(title ? t(title) : "");
  return null;
}

/** A defect in one page leaves the others usable: going elsewhere forgets it. */
class Boundary extends Component<{ at: string; children: ReactNode }, { at: string; error: unknown }> {
  override state = { at: this.props.at, error: undefined as unknown };
  static getDerivedStateFromError(error: unknown) {
    return { error };
  }
  static getDerivedStateFromProps({ at }: { at: string }, state: { at: string }) {
    return at === state.at ? null : { at, error: undefined };
  }
  override render() {
    if (this.state.error === undefined) return this.props.children;
    return (
      <Notice tone="error" title={t("Something went wrong in this page.")} action={<Button onClick={() => location.reload()}>{t("Reload")}</Button>}>
        {String(this.state.error)}
      </Notice>
    );
  }
}
