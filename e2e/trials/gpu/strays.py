"""Reads memory of the GPU that it never asked for: an error of the program, after which the driver ends it."""

import torch


class Beyond:
    """A tensor of one number, described as one of 32 GiB."""

    def __init__(self):
        self.one = torch.ones(1, device="cuda")
        place = (self.one.data_ptr(), False)
        self.__cuda_array_interface__ = {"data": place, "shape": (1 << 33,), "typestr": "<f4", "version": 2}


print("reads beyond", flush=True)
print(torch.as_tensor(Beyond(), device="cuda").sum().item(), flush=True)
