// The command palette: jump to any page or box by a few letters.

import { useMemo, useState } from "react";
import { PAGES } from "../app";
import { boxTitle } from "../format";
import { t, word } from "../i18n";
import { live } from "../live";
import { navigate } from "../router";
import { useSession } from "../session";
import { Dialog } from "./dialog";

const SHOWN = 12;

export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const role = useSession().role;
  const boxes = live.use((state) => state.boxes);
  const found = useMemo(() => {
    const all = [
      ...PAGES.filter((page) => !page.admin || role === "admin").map((page) => ({ to: page.path, title: t(page.title), side: "" })),
      ...[...boxes.values()].flatMap((box) => [
        { to: `/boxes/${box.id}`, title: boxTitle(box), side: `${word(box.state)} · ${box.owner} · ${box.id}` },
        { to: `/boxes/${box.id}/terminal`, title: `${t("Terminal")}: ${boxTitle(box)}`, side: box.id },
      ]),
    ];
    const wanted = text.toLowerCase();
    return all.filter((each) => `${each.title} ${each.side}`.toLowerCase().includes(wanted)).slice(0, SHOWN);
  }, [text, boxes, role]);
  const go = (index: number) => {
    const target = found[index];
    if (!target) return;
    onClose();
    navigate(target.to);
  };
  return (
    <Dialog title={t("Find anything")} onClose={onClose}>
      <div className="palette">
        <input
          autoFocus
          type="search"
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={found[chosen] ? `palette-${chosen}` : undefined}
          aria-label={t("Pages and boxes")}
          placeholder={t("Pages and boxes")}
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setChosen(0);
          }}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") setChosen((before) => Math.min(before + 1, found.length - 1));
            else if (event.key === "ArrowUp") setChosen((before) => Math.max(before - 1, 0));
            else if (event.key === "Enter") go(chosen);
            else return;
            event.preventDefault();
          }}
        />
        <ul id="palette-list" role="listbox" aria-label={t("Pages and boxes")}>
          {found.map((each, index) => (
            <li
              key={each.to}
              id={`palette-${index}`}
              role="option"
              aria-selected={index === chosen}
              onMouseDown={(event) => {
                event.preventDefault();
                go(index);
              }}
            >
              {each.title} <small>{each.side}</small>
            </li>
          ))}
        </ul>
        {!found.length && <p className="dim">{t("Nothing has this name.")}</p>}
      </div>
    </Dialog>
  );
}
