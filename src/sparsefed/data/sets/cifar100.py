"""CIFAR-100 (Krizhevsky 2009): 32x32 colour photographs of 100 things, 50 000 to train and 10 000 to test; fine labels.

The .bin files have the MD5 sums that other projects state for them (train.bin 6172c7755cfe09b2fe270c85cebc1b15 and
test.bin 4499cfba6c016c1be1438163640a0898); the SHA-256 sums below are of the same bytes and of the arrays decoded from
them.
"""

from __future__ import annotations

from sparsefed.data.record import DataFile
from sparsefed.data.sets.cifar import Kind, Part, dataset
from sparsefed.data.sources.archive import archive

NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

KIND = Kind(
    name="cifar100",
    description="CIFAR-100: photographs, 32x32 colour, 100 classes, 50 000 + 10 000 images",
    train=(
        Part(
            "train",
            50_000,
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
            "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        ),
    ),
    test=Part(
        "test",
        10_000,
        "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
        "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
        "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    ),
    compact=(
        DataFile("cifar100_train.npz", 82_909_492, "6d5cbf70bc1731d48d97c7be0d1ab7fadddcac9a129ae406bea03fea69de9a2c"),
        DataFile("cifar100_test.npz", 16_626_298, "15431eeb9c0c3c0d2fcf499ac56226f42958f92578ddb4ee2e20ceb890ea8ae9"),
    ),
    label_bytes=2,  # coarse, fine
    label_key=b"fine_labels",
    archives=("cifar-100-binary.tar", "cifar-100-python.tar"),
    folders=("cifar-100-binary", "cifar-100-python"),
    classes=tuple(NAMES.split()),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
DATASET = dataset(KIND, (archive("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"),))
