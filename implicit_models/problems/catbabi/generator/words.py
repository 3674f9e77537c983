"""The words that stories are told with; what is said in several ways is drawn uniformly."""

PEOPLE = ("John", "Mary", "Sandra", "Daniel")
TOWNSFOLK = ("Mary", "Bill", "Fred", "Julie")
GIVERS = ("Mary", "Fred", "Bill", "Jeff")
PRONOUNS = {"Mary": "she", "Sandra": "she", "John": "he", "Daniel": "he"}

ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
TOWN = ("bedroom", "cinema", "kitchen", "office", "park", "school")
THINGS = ("apple", "football", "milk")

WENT = (
    ("went", "to", "the"),
    ("went", "back", "to", "the"),
    ("moved", "to", "the"),
    ("journeyed", "to", "the"),
    ("travelled", "to", "the"),
)
GOT = (("got", "the"), ("took", "the"), ("grabbed", "the"), ("picked", "up", "the"))
DROPPED = (("dropped", "the"), ("left", "the"), ("discarded", "the"), ("put", "down", "the"))
GAVE = ("gave", "handed", "passed")
NEXT = (("Afterwards",), ("Then",), ("After", "that"), ("Following", "that"))
NUMBERS = ("none", "one", "two", "three")
