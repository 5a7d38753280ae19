// Calls: graphs.
#include <unordered_map>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

Work make_memset(const CUDA_MEMSET_NODE_PARAMS& params);
Work make_copy(const CUDA_MEMCPY3D& params);

namespace {

/// Made from a graph, apart from it: the nodes in an order that their edges allow.
struct Executable {
  std::vector<Work> steps;
  std::unordered_map<const Node*, size_t> place;
};

struct Graphs {
  std::unordered_map<const void*, std::shared_ptr<Graph>> all;
  std::unordered_map<const void*, std::shared_ptr<Executable>> executables;
};
Graphs& graphs() {
  static Graphs& one = *new Graphs;
  return one;
}

Graph* graph_of(CUgraph handle) {
  auto found = graphs().all.find(handle);
  return found == graphs().all.end() ? nullptr : found->second.get();
}

std::shared_ptr<Executable> executable_of(CUgraphExec handle) {
  auto found = graphs().executables.find(handle);
  return found == graphs().executables.end() ? nullptr : found->second;
}

bool visit(Node* node, std::unordered_map<Node*, int>& seen, Executable& out) {
  int& mark = seen[node];
  if (mark == 2) return true;
  if (mark == 1) return false;  // a cycle
  mark = 1;
  for (Node* before : node->after)
    if (!visit(before, seen, out)) return false;
  seen[node] = 2;
  out.place[node] = out.steps.size();
  out.steps.push_back(node->work);
  return true;
}

CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* after, size_t count, CUgraphNodeType type,
             Work work) {
  Graph* graph = graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || (count != 0 && after == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  auto* nodes = reinterpret_cast<Node* const*>(after);
  *out = reinterpret_cast<CUgraphNode>(graph->add(type, std::move(work), {nodes, nodes + count}));
  return CUDA_SUCCESS;
}

Function* function_in(const CUDA_KERNEL_NODE_PARAMS& params) {
  return function_of(params.func != nullptr ? static_cast<const void*>(params.func) : params.kern);
}

}  // namespace

Node* Graph::add(CUgraphNodeType type, Work work, std::vector<Node*> after) {
  return &nodes.emplace_back(Node{type, std::move(work), std::move(after), {}});
}

CUgraph graph_adopt(std::shared_ptr<Graph> graph) {
  auto handle = reinterpret_cast<CUgraph>(graph.get());
  graphs().all[handle] = std::move(graph);
  return handle;
}

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  CKPT_STANDIN_ENTER();
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  *graph = graph_adopt(std::make_shared<Graph>());
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return graphs().all.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Function* function = params == nullptr ? nullptr : function_in(*params);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Work work = make_launch(function, *params);
  if (!work) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = add(node, graph, after, count, CU_GRAPH_NODE_TYPE_KERNEL, std::move(work));
  if (result == CUDA_SUCCESS)
    reinterpret_cast<Node*>(*node)->params = std::make_shared<CUDA_KERNEL_NODE_PARAMS>(*params);
  return result;
}

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Work work = params == nullptr ? Work{} : make_memset(*params);
  return work ? add(node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET, std::move(work)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMCPY3D* params, CUcontext) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Work work = params == nullptr ? Work{} : make_copy(*params);
  return work ? add(node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(work)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(node, graph, after, count, CU_GRAPH_NODE_TYPE_HOST, [one = *params] { one.fn(one.userData); });
}

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return add(node, graph, after, count, CU_GRAPH_NODE_TYPE_EMPTY, [] {});
}

CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  if (graph_of(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; i < count; ++i) reinterpret_cast<Node*>(to[i])->after.push_back(reinterpret_cast<Node*>(from[i]));
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Graph* graph = graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  size_t at = 0;
  if (nodes != nullptr) {
    for (Node& each : graph->nodes)
      if (at < *count) nodes[at++] = reinterpret_cast<CUgraphNode>(&each);
  }
  *count = nodes == nullptr ? graph->nodes.size() : at;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  CKPT_STANDIN_ENTER();
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = reinterpret_cast<Node*>(node)->type;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params) {
  CKPT_STANDIN_ENTER();
  auto* node = reinterpret_cast<Node*>(handle);
  if (node == nullptr || node->params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *params = *node->params;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph handle, unsigned long long) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Graph* graph = graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto made = std::make_shared<Executable>();
  std::unordered_map<Node*, int> seen;
  for (Node& each : graph->nodes)
    if (!visit(&each, seen, *made)) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraphExec>(made.get());
  graphs().executables[made.get()] = made;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  CUresult result = cuGraphInstantiateWithFlags(out, graph, params->flags);
  params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return graphs().executables.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto executable = executable_of(handle);
  Function* function = params == nullptr ? nullptr : function_in(*params);
  if (executable == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto found = executable->place.find(reinterpret_cast<Node*>(node));
  Work work = make_launch(function, *params);
  if (found == executable->place.end() || !work) return CUDA_ERROR_INVALID_VALUE;
  executable->steps[found->second] = std::move(work);
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return executable_of(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream on) {
  CKPT_STANDIN_ENTER();
  auto stream = stream_of(on);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard guard(lock());
  auto executable = executable_of(handle);
  if (executable == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return submit(stream, CU_GRAPH_NODE_TYPE_GRAPH, [steps = executable->steps] {
    for (const Work& step : steps) step();
  });
}

}  // namespace ckpt::cuda::api
