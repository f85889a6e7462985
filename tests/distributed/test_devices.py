"""One full matrix is on one device; what spreads it over several is refused before anything is changed."""

import pytest
import torch

from torch_ggt.parameters import common_device


class Placed:
    """A parameter that says where it is: this machine may have one device alone."""

    def __init__(self, device):
        self.device, self.shape = torch.device(device), (3,)


def test_a_matrix_over_several_devices_is_refused_with_what_to_do():
    parameters = [Placed("cuda:0"), Placed("cuda:1")]
    group = {"params": parameters, "param_names": ["first", "second"]}
    with pytest.raises(RuntimeError, match=r"'first' .* on cuda:0 and .*'second' .* on cuda:1.*scope='group'"):
        common_device([(group, p) for p in parameters])
    assert common_device([(group, parameters[0])]) == torch.device("cuda:0")
