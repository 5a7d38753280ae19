// The pickle machine, and all that reads its graphs.
#include "formats/pickle/render.h"
#include "formats/pickle/torch_tensor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto graph = ckpt::pickle::parse({reinterpret_cast<const std::byte*>(data), size});
  if (!graph) return 0;
  ckpt::pickle::RenderOptions options;
  options.max_nodes = 10'000;
  (void)ckpt::pickle::to_json(*graph, graph->root(), options);
  (void)ckpt::pickle::refuse_unknown_globals(*graph);
  for (ckpt::pickle::NodeId id = 0; id < graph->node_count(); ++id) {
    if (ckpt::pickle::is_torch_tensor(*graph, id)) (void)ckpt::pickle::read_torch_tensor(*graph, id);
  }
  return 0;
}
