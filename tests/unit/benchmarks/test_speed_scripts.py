"""The parts of benchmarks/speed that measure nothing: dealing, weights, tables, pictures."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

SPEED = Path(__file__).parents[3] / "benchmarks" / "speed"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SPEED / "peers"), str(SPEED), *sys.path])


def test_peers_get_coteries_torch_and_numpy_and_no_other_pin():
    import environments

    text = "# a comment\ntorch==2.13.0\ntorchvision==1.0\nnumpy==2.4.6\ntyper==0.29.0\n"
    assert environments.pins(text) == ["torch==2.13.0", "numpy==2.4.6"]


def test_clients_go_largest_first_to_the_smaller_pile():
    import contenders

    shares = [[0] * size for size in (2, 9, 5, 4)]
    assert [[len(s) for s in pile] for pile in contenders.piles(shares, 2)] == [[9, 2], [5, 4]]


def test_the_plain_network_is_coteries():
    import shared

    from coterie.core.task import METHOD
    from coterie.experiment.config import resolve
    from coterie.experiment.prepare import prepare

    tables = {"data": {"name": "digits"}, "evaluate": {"with": []}}
    net = prepare(resolve(tables), Path("nowhere")).parts.nets(METHOD)["model"]
    ours, plain = list(net.parameters()), list(shared.simple_cnn().parameters())
    # the digits are smaller and grey: the first layer and the one behind the images differ
    assert [w.ndim for w in ours] == [w.ndim for w in plain]
    assert [w.shape for w in ours[6:]] == [w.shape for w in plain[6:]]


def test_weights_survive_the_way_through_a_vector():
    import shared

    net, other = shared.simple_cnn(), shared.simple_cnn()
    vector = shared.flat(net)
    shared.put(other, vector)
    vector[:] = 0.0  # a copy was taken
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(ValueError, match="weights, not 3"):
        shared.put(net, np.zeros(3, np.float32))


def test_the_plain_contrast_is_coteries():
    import plain_moon

    from coterie.kit.losses import model_contrast

    torch.manual_seed(0)
    z, near, far = torch.randn(3, 5, 8)
    ours = model_contrast(z, near, [far], plain_moon.TAU).loss
    assert torch.allclose(plain_moon.contrast(z, near, far), ours)


def test_plain_moon_trains_and_remembers(monkeypatch):
    import plain_moon
    import shared

    monkeypatch.setattr(plain_moon, "EPOCHS", 1)
    torch.manual_seed(0)
    client = plain_moon.Client(torch.randn(70, 3, 32, 32), torch.arange(70) % 10)
    assert client.batch(torch.arange(4)).shape == (4, 3, 32, 32)
    loop, start = plain_moon.Loop(moon=True), shared.flat(shared.simple_cnn())
    assert loop.train(client, start) == 2
    first = client.previous
    assert not np.array_equal(first, start)
    assert loop.train(client, start) == 2
    assert not np.array_equal(client.previous, first)


def test_the_table_shows_every_ratio():
    import compare

    found = {
        "a": {"seconds a round": 2.0, "to a": 1.0, "test accuracy after the rounds": 0.5},
        "b": {"seconds a round": 4.0, "to a": 2.0},
    }
    head, rule, one, two = compare.table(found).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (head, one, two)]
    assert cells[0] == ["", "seconds a round", "to a", "accuracy"]
    assert cells[1:] == [["a", "2.00", "1.00", "0.500"], ["b", "4.00", "2.00", ""]]
    assert set(rule) <= set("|-: ") and len({len(head), len(rule), len(one), len(two)}) == 1


def run(clients, seconds):
    bytes_ = {"RssAnon": {"peak": 3e8}}
    return {
        "clients": clients,
        "seconds a round": seconds,
        "processor seconds a round": 2 * seconds,
        "main process, bytes": bytes_,
        "largest worker, bytes": bytes_,
        "run directory": {"bytes": 5e6},
    }


def test_the_picture_of_growth_is_whole():
    import growth_picture

    runs = {"all take part": [run(10, 1.0), run(100, 2.0)], "100 take part": [run(1000, 0.5)]}
    text = growth_picture.draw(runs)
    circles = ElementTree.fromstring(text).findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 * 5  # three runs in three panels, two of which have two lines


@pytest.mark.parametrize(
    ("highest", "expected"), [(6.1, (8.0, 2.0)), (0.53, (0.6, 0.1)), (240.0, (250.0, 50.0))]
)
def test_axes_end_in_round_numbers(highest, expected):
    import growth_picture

    assert growth_picture.axis(highest) == pytest.approx(expected)


def test_descendants_are_found_and_their_processor_time():
    import processes

    command = [
        sys.executable,
        "-c",
        "import time; print(sum(range(10**6)), flush=True); time.sleep(60)",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert child.pid in processes.descendants([os.getpid()])
        assert 0 < processes.used([child.pid]) <= processes.used([os.getpid()])
        assert processes.memory(child.pid)["VmRSS"] >= processes.memory(child.pid)["RssAnon"] > 0
        child.kill()


def test_growth_invites_the_same_number_whoever_else_is_there():
    import growth

    from coterie.experiment.config import resolve

    for clients in growth.CLIENTS[growth.SOME]:
        tables = growth.setting(growth.SOME, clients, 3, {"name": "digits"})
        assert int(clients * resolve(tables).cohort.fraction + 1e-9) == growth.INVITED


def test_growth_counts_files_of_clients_apart(tmp_path):
    import growth

    (tmp_path / "clients" / "7").mkdir(parents=True)
    (tmp_path / "clients" / "7" / "000001.1.safetensors").write_bytes(b"12345")
    (tmp_path / "metrics.jsonl").write_bytes(b"123")
    found = growth.on_disk(tmp_path)
    assert found == {"bytes": 8, "bytes of clients' states": 5, "clients with a state": 1}


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_the_bare_simsiam_has_coteries_parameters(name):
    import bare_simsiam

    from coterie.core.settings import NetSettings
    from coterie.nets.build import make_backbone
    from coterie.objectives.simsiam import SimSiam

    net = SimSiam().build(make_backbone(NetSettings(name), (3, 32, 32)), 10, 2048)
    count = [sum(w.numel() for w in one.parameters()) for one in (net, bare_simsiam.simsiam(name))]
    assert count[0] == count[1]
