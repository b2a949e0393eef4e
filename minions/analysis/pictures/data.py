"""A picture as plain data, for programs that draw it themselves."""

from __future__ import annotations

from minions.analysis.pictures.layout import rows_of
from minions.analysis.pictures.picture import Picture
from minions.data.json_values import JsonValue


def picture_to_json(picture: Picture) -> dict[str, JsonValue]:
    """`{"recipe", "nodes": [{"id", "kind", "label", "notes", "status"}], "edges": [{"from", "to",
    "dashed", "back"}], "layers": [[id]]}`; layers from top to bottom.
    """
    ids = [node.id for node in picture.nodes]
    return {
        "recipe": picture.title,
        "nodes": [
            {
                "id": node.id,
                "kind": node.kind,
                "label": node.label,
                "notes": list(node.notes),
                "status": node.status,
            }
            for node in picture.nodes
        ],
        "edges": [
            {
                "from": ids[edge.start],
                "to": ids[edge.end],
                "dashed": edge.is_dashed,
                "back": edge.back,
            }
            for edge in picture.edges
        ],
        "layers": [[ids[step] for step in row] for row in rows_of(picture)],
    }
