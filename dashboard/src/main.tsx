import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { applyPreferences, resume } from "./session";
import "./style/base.css";
import "./style/parts.css";
import "./style/pages.css";

applyPreferences();
void resume();
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
