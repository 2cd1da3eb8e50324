// The title of the window: what it shows, and how many questions wait for an answer.

import { useEffect } from "react";
import { live } from "../live";

export function useTitle(title: string): void {
  const waiting = live.use((state) => state.questions.length);
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${title ? `${title} · ` : ""}Hutch`;
  }, [waiting, title]);
}
