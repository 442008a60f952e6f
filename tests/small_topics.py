"""The topics of the small corpus, and the words of each."""

TOPICS = {
    "fruit": ["apple", "banana", "cherry", "orange", "melon"],
    "metal": ["iron", "copper", "silver", "nickel", "cobalt"],
    "music": ["violin", "trumpet", "piano", "cello", "flute"],
    "river": ["danube", "nile", "rhine", "volga", "congo"],
}
