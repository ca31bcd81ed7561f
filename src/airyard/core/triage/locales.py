"""Says in English what shells and the C library say in other languages: signatures are of English texts.

Owns: the phrases. Must not know: what they are signs of. Python's own exceptions have their number (``[Errno 28]``) in
every language, and the kernel speaks English alone.
"""

from __future__ import annotations

import re

_PHRASES = {
    "command not found": (
        r"(?:Befehl|Kommando) (?:wurde )?nicht gefunden\.?|commande (?:introuvable|non trouvée)"
        r"|(?:orden|comando) no encontrad[oa]|no se encontró la orden|comando não encontrado|comando non trovato"
        r"|команда не найдена|未找到命令|コマンドが見つかりません|명령어를 찾을 수 없음"
    ),
    "Permission denied": (
        r"Keine Berechtigung|Permission non accordée|Permiso denegado|Permissão negada|Permesso negato"
        r"|Отказано в доступе|权限不够|許可がありません"
    ),
    "No space left on device": (
        r"Auf dem Gerät ist kein Speicherplatz mehr verfügbar|Aucun espace disponible sur le périphérique"
        r"|No queda espacio en el dispositivo|Não há espaço disponível no dispositivo"
        r"|На устройстве не осталось свободного места|设备上没有空间|デバイスに空き領域がありません"
    ),
    "Segmentation fault": (
        r"Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento|Falha de segmentação"
        r"|Errore di segmentazione|Ошибка сегментирования|段错误"
    ),
    "Killed": r"Getötet|Processus arrêté|Terminado \(killed\)|Убито|已杀死|強制終了",
}
_FOREIGN = re.compile("|".join(f"({each})" for each in _PHRASES.values()))
_ENGLISH = tuple(_PHRASES)
_HINTS = (
    (
        "gefunden",
        "introuvable",
        "trouvée",
        "encontrad",
        "encontró la",
        "trovato",
        "denegado",
        "negad",
        "negato",
    ),
    ("espacio", "espaço", "segment", "accordée", "arrêté"),
    ("Berechtigung", "Speicher", "Aucun espace", "Erreur de", "Getötet"),
    ("не найдена", "Отказано", "устройстве", "сегментирования", "Убито"),
    ("未找到", "見つかり", "찾을 수", "权限", "許可が", "设备上", "空き領域", "段错误", "已杀", "強制終了"),
)


def _hints() -> bytes:
    """Return the words as few alternatives: each is tried at every place of a line that begins as one of its words."""
    groups = []
    for words in _HINTS:
        octets = [word.encode() for word in words]
        first = b"".join(sorted({word[:1] for word in octets}))
        groups.append(b"[" + first + b"](?:" + b"|".join(word[1:] for word in octets) + b")")
    return b"|".join(groups)


HINTS = _hints()
"""Without a fit of this there is none of the phrases."""


def in_english(text: str) -> str:
    """Return a line with the phrases of other languages in English."""
    return _FOREIGN.sub(lambda found: _ENGLISH[(found.lastindex or 1) - 1], text)
