"""A file of offers: read in order, each mistake with its line, the rule and what to write."""

from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.planning.offers import Offer, read_offers
from tests.scenarios.files import told

HEADER = "device,gpus,nodes,network,price\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "offers.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_offers_are_read_in_order_with_columns_in_any(tmp_path: Path) -> None:
    header = "price, Network ,nodes,gpus,device,name\n# dear\n\n"
    text = header + '6.1,"25 Gbit/s",16,4,V100,\n2,10gbe,1,1,l4,own\n'
    path = written(tmp_path, text)
    first, second = read_offers(path)
    assert first == Offer(
        place=f"{path}:4", name="v100, 25 Gbit/s", device="v100", gpus=4, nodes=16,
        network="25 Gbit/s", price=6.1,
    )  # fmt: skip
    assert (second.name, second.place, second.price) == ("own", f"{path}:5", 2.0)


def test_a_node_may_have_several_nics_and_an_nvlink_domain_72_gpus(tmp_path: Path) -> None:
    rows = "device,gpus,nodes,network,price,nics\nh100,8,4,400gbe,40,8\ngb200,72,1,400gbe,300,1\n"
    nodes, domain = read_offers(written(tmp_path, rows))
    assert (nodes.nics, nodes.name) == (8, "h100_sxm, 8 x 400gbe")
    assert (domain.nics, domain.gpus, domain.name) == (1, 72, "gb200, 400gbe")
    with pytest.raises(InputError, match="nics = '33' is not a whole number from 1 to 32"):
        read_offers(written(tmp_path, rows.replace("40,8", "40,33")))


@pytest.mark.parametrize(
    ("text", "expected", "hint"),
    [
        ("", ": is empty", "write device,gpus"),
        (HEADER, ": has a header and no offers", "a row is like"),
        (
            "device,gpus,nodes,network\na100,8,4,100gbe\n",
            ":1: error: the column 'price'",
            "write device",
        ),
        (HEADER.replace(",", ";"), ":1: error: ';' separates the columns", "write device,gpus"),
        ("a,device,gpus,nodes,network,price\n1\n", ":1: error: unknown column 'a'", "known"),
        ("device," + HEADER + "1\n", ":1: error: the column 'device' appears twice", "keep one"),
        (HEADER + "a100,8,4,100gbe\n", ":2: error: has 4 values for 5 columns", "a row is like"),
        (HEADER + "a100,8,4,100gbe,0\n", ":2: error: price = '0' is not a number above 0", "14.20"),
        (HEADER + "a100,8,4,100gbe,-1\n", ":2: error: price = '-1'", "14.20"),
        (HEADER + "a100,8,4,100gbe,$3\n", ":2: error: price = '$3'", "14.20"),
        (HEADER + "a100,8,4,100gbe,inf\n", ":2: error: price = 'inf'", "14.20"),
        (
            HEADER + "#\na100,0,4,100gbe,1\n",
            ":3: error: gpus = '0' is not a whole",
            "from 1 to 128",
        ),
        (HEADER + "a100,8,4097,100gbe,1\n", ":2: error: nodes = '4097'", "from 1 to 4096"),
        (HEADER + "a100,8,2.5,100gbe,1\n", ":2: error: nodes = '2.5'", "from 1 to 4096"),
        (HEADER + f"a100,8,{'9' * 5000},100gbe,1\n", ":2: error: nodes = '999", "from 1 to 4096"),
        (HEADER + "a100,8,00000000119,100gbe,1\n", ":2: error: nodes = '000", "from 1 to 4096"),
        (
            HEADER + "a1000000,8,4,100gbe,1\n",
            ":2: error: unknown device 'a1000000'",
            "gcsim list devices",
        ),
        (HEADER + "h1000,8,4,100gbe,1\n", ":2: error: unknown device 'h1000'", "similar: h100"),
        (HEADER + "a100,8,4,100 gby,1\n", ":2: error: unknown unit 'gby'", "Gbit/s"),
        (HEADER + "a100,8,4,100gbe,1\n" * 201, "has 201 offers; 200 are allowed", "cost more"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_a_cure(
    tmp_path: Path, text: str, expected: str, hint: str
) -> None:
    (found,) = told(tmp_path, lambda: read_offers(written(tmp_path, text)))
    assert found.startswith("offers.csv")
    assert expected in found
    assert hint in found


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = HEADER + "a100,0,4,100gbe,x\na100,8,4,100gbe,1\nb,8,4,100gbe,1\n"
    found = told(tmp_path, lambda: read_offers(written(tmp_path, text)))
    assert [problem.split(": ")[0] for problem in found] == [f"offers.csv:{n}" for n in (2, 2, 4)]
