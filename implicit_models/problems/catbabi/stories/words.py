"""The words of bAbI's twenty tasks, lower-cased and in order; release 1.2 has no others."""

WORDS = tuple(
    """
. ? a above afraid after afternoon afterwards and antoine apple apple,football
apple,football,milk apple,milk apple,milk,football are back bathroom bedroom before below
bernhard bigger bill blue bored box brian carrying cat cats chest chocolate chocolates cinema
color container daniel did discarded do does down dropped e,e e,n e,s east either emily evening
fit fits following football football,apple football,apple,milk football,milk football,milk,apple
fred frog from garden gave gertrude get give go got grabbed gray green greg hallway handed he
how hungry in inside is jason jeff jessica john journeyed julie julius kitchen left lily lion
longer many mary maybe mice milk milk,apple milk,apple,football milk,football
milk,football,apple morning mouse moved n,e n,n n,w no none north not nothing objects of office
one or pajamas park passed picked pink put received rectangle red rhino right s,e s,s s,w sandra
school she sheep south sphere square suitcase sumit swan than that the then there they thirsty
this three tired to took travelled triangle two up w,n w,s w,w was went west what where white
who why will winona wolf wolves yann yellow yes yesterday you
""".split()  # noqa: SIM905 (178 strings are no easier to read)
)
