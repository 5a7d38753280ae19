// Hundreds of small allocations, some given back, some large ones among them; each step changes a tenth of them.
#include "tests/device/programs/program.h"

namespace {

constexpr int kCount = 200;

struct Piece {
  CUdeviceptr at = 0;
  size_t bytes = 0;
  uint64_t seed = 0;
};
std::vector<Piece> pieces(kCount);
const Words* words;
uint64_t random_state = 12345;

uint64_t next() { return random_state = mix(random_state, 1); }

void renew(Piece& piece) {
  if (piece.at != 0) CU(cuMemFree_v2(piece.at));
  piece.bytes = next() % 200 == 0 ? (1 << 20) + next() % (3 << 20) : 8 + next() % 6000;
  piece.bytes &= ~size_t{7};
  piece.seed = next();
  CU(cuMemAlloc_v2(&piece.at, piece.bytes));
  words->write(piece.at, piece.bytes, piece.seed);
}

void step(int) {
  for (Piece& piece : pieces)
    if (next() % 10 == 0) renew(piece);
}

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  driver_start();
  words = new Words(kernels_load());
  for (Piece& piece : pieces) renew(piece);
  step(0);
  CU(cuCtxSynchronize());
  target_ready();
  target_wait(step);
  for (const Piece& piece : pieces) words->check(piece.at, piece.bytes, piece.seed);
  step(0);
  for (const Piece& piece : pieces) words->check(piece.at, piece.bytes, piece.seed);
  for (const Piece& piece : pieces) CU(cuMemFree_v2(piece.at));
  target_pass();
}
