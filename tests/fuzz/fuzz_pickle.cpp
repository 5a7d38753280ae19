// The pickle machine, strict and loose, and all that reads its graphs. What is written again from a graph builds the
// same.
#include <cstdlib>

#include "formats/pickle/emit.h"
#include "formats/pickle/render.h"
#include "formats/pickle/scan.h"
#include "formats/pickle/torch_tensor.h"

namespace {

using namespace ckpt::pickle;

void write_again(const Graph& graph, const RenderOptions& options) {
  Writer out;
  Emitter* self = nullptr;
  Emitter emitter(out, graph, [&](NodeId id) {
    auto done = self->emit(graph.args(id));
    if (done) out.persistent_id();
    return done;
  });
  self = &emitter;
  if (!emitter.emit(graph.root())) return;
  out.stop();
  const std::string text = out.take();
  auto again = parse(ckpt::as_bytes(text));
  if (!again) std::abort();
  // Bytes and sets become calls that make them, which renders otherwise; what a budget cuts may differ in length.
  const std::string before = to_json(graph, graph.root(), options), after = to_json(*again, again->root(), options);
  for (const char* other : {"__cut__", "__bytes__", "__set__", "__class__"}) {
    if (before.find(other) != std::string::npos || after.find(other) != std::string::npos) return;
  }
  if (before != after) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)ckpt::pickle::scan({reinterpret_cast<const std::byte*>(data), size});
  auto graph = ckpt::pickle::parse({reinterpret_cast<const std::byte*>(data), size});
  if (!graph) return 0;
  ckpt::pickle::RenderOptions options;
  options.max_nodes = 10'000;
  (void)ckpt::pickle::to_json(*graph, graph->root(), options);
  (void)ckpt::pickle::refuse_unknown_globals(*graph);
  write_again(*graph, options);
  for (ckpt::pickle::NodeId id = 0; id < graph->node_count(); ++id) {
    if (ckpt::pickle::is_torch_tensor(*graph, id)) (void)ckpt::pickle::read_torch_tensor(*graph, id);
  }
  return 0;
}
