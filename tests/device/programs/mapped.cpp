// Memory and addresses apart: one piece of memory at two addresses, a range of two pieces, one that is read only, one
// that is reserved and empty, one that is made and mapped nowhere. Each step moves a piece to another address.
#include "tests/device/programs/program.h"

namespace {

constexpr size_t kUnit = 2 << 20;
CUmemAllocationProp prop;
const Words* words;
CUdeviceptr range, mirror, empty;
CUmemGenericAllocationHandle piece[2], unmapped;

CUmemGenericAllocationHandle make(size_t size) {
  CUmemGenericAllocationHandle handle;
  CU(cuMemCreate(&handle, size, &prop, 0));
  return handle;
}

void allow(CUdeviceptr at, size_t size, CUmemAccess_flags flags) {
  CUmemAccessDesc access{prop.location, flags};
  CU(cuMemSetAccess(at, size, &access, 1));
}

CUdeviceptr reserve(size_t size) {
  CUdeviceptr at;
  CU(cuMemAddressReserve(&at, size, 0, 0, 0));
  return at;
}

void move(int) {
  CU(cuCtxSynchronize());
  CU(cuMemUnmap(mirror, kUnit));
  CU(cuMemAddressFree(mirror, kUnit));
  CUdeviceptr next = reserve(2 * kUnit);
  CU(cuMemMap(next + kUnit, kUnit, 0, piece[1], 0));
  CU(cuMemUnmap(next + kUnit, kUnit));
  CU(cuMemAddressFree(next, 2 * kUnit));
  mirror = reserve(kUnit);
  CU(cuMemMap(mirror, kUnit, 0, piece[1], 0));
  allow(mirror, kUnit, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  driver_start();
  words = new Words(kernels_load());
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t unit = 0;
  CU(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK_EQUAL(kUnit % unit, 0);
  range = reserve(2 * kUnit);
  for (int i = 0; i < 2; ++i) {
    piece[i] = make(kUnit);
    CU(cuMemMap(range + i * kUnit, kUnit, 0, piece[i], 0));
  }
  allow(range, 2 * kUnit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  mirror = reserve(kUnit);
  CU(cuMemMap(mirror, kUnit, 0, piece[1], 0));
  allow(mirror, kUnit, CU_MEM_ACCESS_FLAGS_PROT_READ);
  empty = reserve(16 * kUnit);
  unmapped = make(kUnit);
  words->write(range, 2 * kUnit, 31);
  words->write(range + kUnit, kUnit, 32);
  CU(cuCtxSynchronize());
  target_ready();
  target_wait(move);
  words->check(range, kUnit, 31);
  words->check(range + kUnit, kUnit, 32);
  words->check(mirror, kUnit, 32);
  words->write(range + kUnit, kUnit, 33);
  words->check(mirror, kUnit, 33);
  CU(cuMemMap(empty + 4 * kUnit, kUnit, 0, unmapped, 0));
  allow(empty + 4 * kUnit, kUnit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  words->write(empty + 4 * kUnit, kUnit, 34);
  words->check(empty + 4 * kUnit, kUnit, 34);
  target_pass();
}
