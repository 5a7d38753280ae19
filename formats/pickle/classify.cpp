// The table behind the scan: what names run code when a pickle calls them. Gathered from what picklescan, fickling and
// modelscan refuse, and from the advisories on their gaps; what a checkpoint needs is in globals.cpp.
#include <array>

#include "formats/pickle/scan.h"

namespace ckpt::pickle {

namespace {

struct Risk {
  std::string_view module;  ///< itself and what lies below it
  std::string_view name;    ///< empty: everything of the module
  std::string_view why;
};

constexpr std::string_view kCommand = "runs commands", kCode = "runs code", kFiles = "touches files",
                           kNetwork = "talks to the network", kReach = "reaches into any object",
                           kLoads = "loads another pickle or library", kImports = "imports modules",
                           kState = "changes the interpreter", kCalls = "calls what it is given";

constexpr auto kRisks = std::to_array<Risk>({
    {"os", "", kCommand},
    {"posix", "", kCommand},
    {"nt", "", kCommand},
    {"subprocess", "", kCommand},
    {"_posixsubprocess", "", kCommand},
    {"pty", "", kCommand},
    {"commands", "", kCommand},
    {"popen2", "", kCommand},
    {"platform", "popen", kCommand},
    {"posixpath", "", kFiles},
    {"ntpath", "", kFiles},
    {"genericpath", "", kFiles},
    {"distutils", "", kCommand},
    {"setuptools", "", kCommand},
    {"pip", "", kCommand},
    {"ensurepip", "", kCommand},
    {"venv", "", kCommand},
    {"webbrowser", "", kCommand},
    {"pydoc", "", kCommand},
    {"idlelib", "", kCommand},
    {"lib2to3", "", kCode},
    {"uu", "", kFiles},
    {"_aix_support", "", kCommand},
    {"_osx_support", "", kCommand},
    {"antigravity", "", kCommand},
    {"sys", "", kState},
    {"gc", "", kReach},
    {"inspect", "", kReach},
    {"site", "", kState},
    {"atexit", "", kCalls},
    {"signal", "", kState},
    {"builtins", "eval", kCode},
    {"builtins", "exec", kCode},
    {"builtins", "execfile", kCode},
    {"builtins", "compile", kCode},
    {"builtins", "__import__", kImports},
    {"builtins", "open", kFiles},
    {"builtins", "file", kFiles},
    {"builtins", "input", kCode},
    {"builtins", "breakpoint", kCode},
    {"builtins", "apply", kCalls},
    {"builtins", "map", kCalls},
    {"builtins", "filter", kCalls},
    {"builtins", "setattr", kReach},
    {"builtins", "delattr", kReach},
    {"builtins", "globals", kReach},
    {"builtins", "locals", kReach},
    {"builtins", "vars", kReach},
    {"builtins", "type", kReach},
    {"builtins", "exit", kState},
    {"builtins", "quit", kState},
    {"builtins", "help", kCommand},
    {"_io", "open", kFiles},
    {"_io", "open_code", kFiles},
    {"_io", "FileIO", kFiles},
    {"io", "open", kFiles},
    {"io", "open_code", kFiles},
    {"io", "FileIO", kFiles},
    {"codecs", "open", kFiles},
    {"tempfile", "", kFiles},
    {"shutil", "", kFiles},
    {"fileinput", "", kFiles},
    {"glob", "", kFiles},
    {"linecache", "", kFiles},
    {"zipfile", "", kFiles},
    {"tarfile", "", kFiles},
    {"mmap", "", kFiles},
    {"logging.config", "", kCode},
    {"logging", "FileHandler", kFiles},
    {"sqlite3", "", kFiles},
    {"importlib", "", kImports},
    {"_frozen_importlib", "", kImports},
    {"_frozen_importlib_external", "", kImports},
    {"imp", "", kImports},
    {"_imp", "", kImports},
    {"pkgutil", "", kImports},
    {"zipimport", "", kImports},
    {"runpy", "", kCode},
    {"code", "", kCode},
    {"codeop", "", kCode},
    {"ast", "", kCode},
    {"bdb", "", kCode},
    {"pdb", "", kCode},
    {"cProfile", "", kCode},
    {"profile", "", kCode},
    {"timeit", "", kCode},
    {"trace", "", kCode},
    {"doctest", "", kCode},
    {"unittest", "", kCode},
    {"test", "", kCode},
    {"types", "FunctionType", kCode},
    {"types", "CodeType", kCode},
    {"types", "LambdaType", kCode},
    {"types", "MethodType", kCalls},
    {"functools", "partial", kCalls},
    {"functools", "reduce", kCalls},
    {"functools", "partialmethod", kCalls},
    {"_functools", "", kCalls},
    {"itertools", "", kCalls},
    {"operator", "", kReach},
    {"_operator", "", kReach},
    {"ctypes", "", kLoads},
    {"_ctypes", "", kLoads},
    {"cffi", "", kLoads},
    {"pickle", "", kLoads},
    {"_pickle", "", kLoads},
    {"cPickle", "", kLoads},
    {"pickletools", "", kLoads},
    {"shelve", "", kLoads},
    {"marshal", "", kLoads},
    {"dill", "", kLoads},
    {"cloudpickle", "", kLoads},
    {"joblib", "", kLoads},
    {"yaml", "", kLoads},
    {"jsonpickle", "", kLoads},
    {"pandas", "read_pickle", kLoads},
    {"pandas.io", "", kLoads},
    {"copyreg", "", kState},
    {"socket", "", kNetwork},
    {"_socket", "", kNetwork},
    {"ssl", "", kNetwork},
    {"socketserver", "", kNetwork},
    {"asyncio", "", kCommand},
    {"http", "", kNetwork},
    {"httplib", "", kNetwork},
    {"httpx", "", kNetwork},
    {"urllib", "", kNetwork},
    {"urllib2", "", kNetwork},
    {"requests", "", kNetwork},
    {"aiohttp", "", kNetwork},
    {"ftplib", "", kNetwork},
    {"smtplib", "", kNetwork},
    {"telnetlib", "", kNetwork},
    {"poplib", "", kNetwork},
    {"imaplib", "", kNetwork},
    {"nntplib", "", kNetwork},
    {"xmlrpc", "", kNetwork},
    {"paramiko", "", kNetwork},
    {"multiprocessing", "", kCommand},
    {"concurrent", "", kCalls},
    {"threading", "", kCalls},
    {"_thread", "", kCalls},
    {"sched", "", kCalls},
    {"numpy.testing", "", kCode},
    {"numpy.f2py", "", kCommand},
    {"numpy.distutils", "", kCommand},
    {"numpy.ctypeslib", "", kLoads},
    {"numpy", "load", kLoads},
    {"numpy", "save", kFiles},
    {"numpy", "fromfile", kFiles},
    {"numpy", "memmap", kFiles},
    {"numpy", "loadtxt", kFiles},
    {"torch", "load", kLoads},
    {"torch", "save", kFiles},
    {"torch.serialization", "load", kLoads},
    {"torch.storage", "_load_from_bytes", kLoads},
    {"torch.hub", "", kNetwork},
    {"torch.package", "", kLoads},
    {"torch.jit", "", kLoads},
    {"torch.ops", "", kLoads},
    {"torch._ops", "", kLoads},
    {"torch.utils.cpp_extension", "", kCommand},
    {"torch.utils.collect_env", "", kCommand},
    {"torch.utils.bottleneck", "", kCode},
    {"torch.utils._config_module", "", kLoads},
    {"torch.utils.data", "", kCalls},
    {"torch._inductor", "", kCommand},
    {"torch._dynamo", "", kCode},
    {"torch.fx", "", kCode},
    {"torch.distributed.rpc", "", kNetwork},
    {"torch.distributed.elastic", "", kCommand},
    {"torch.testing", "", kCode},
    {"torch.multiprocessing", "", kCommand},
    {"torch._appdirs", "", kFiles},
    {"torch.onnx", "", kFiles},
    {"torch.utils.model_dump", "", kFiles},
    {"IPython", "", kCode},
    {"jinja2", "", kCode},
    {"mako", "", kCode},
    {"?", "", "the name is made while loading"},
});

/// Harmless, though no checkpoint of the libraries above has them.
constexpr auto kAlsoSafe = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"datetime", "datetime"},
    {"datetime", "date"},
    {"datetime", "time"},
    {"datetime", "timedelta"},
    {"datetime", "timezone"},
    {"decimal", "Decimal"},
    {"fractions", "Fraction"},
    {"uuid", "UUID"},
    {"collections", "deque"},
    {"numpy", "float64"},
    {"numpy", "float32"},
    {"numpy", "float16"},
    {"numpy", "int64"},
    {"numpy", "int32"},
    {"numpy", "bool_"},
    {"builtins", "int"},
    {"builtins", "float"},
    {"builtins", "bool"},
    {"builtins", "str"},
    {"torch", "contiguous_format"},
    {"torch", "channels_last"},
    {"torch", "preserve_format"},
    {"torch", "strided"},
    {"signal", "Signals"},
    {"builtins", "object"},
    {"copyreg", "_reconstructor"},
    // What torch itself lists as safe (torch.serialization.get_safe_globals of 2.13), and what its FSDP puts into a
    // state dict.
    {"torch.nested._internal.nested_tensor", "NestedTensor"},
    {"torch._dynamo.decorators", "_DimRange"},
    {"torch.distributed.tensor", "DTensor"},
    {"torch.distributed._tensor.api", "DTensor"},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec"},
    {"torch.distributed.tensor._dtensor_spec", "TensorMeta"},
    {"torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"},
    {"torch.distributed._tensor.placement_types", "DTensorSpec"},
    {"torch.distributed._tensor.placement_types", "TensorMeta"},
    {"torch.distributed._tensor.placement_types", "Shard"},
    {"torch.distributed._tensor.placement_types", "Replicate"},
    {"torch.distributed.tensor.placement_types", "Shard"},
    {"torch.distributed.tensor.placement_types", "_StridedShard"},
    {"torch.distributed.tensor.placement_types", "Replicate"},
    {"torch.distributed.tensor.placement_types", "Partial"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed._mesh_layout", "_MeshLayout"},
    {"torch.distributed._mesh_layout", "_FlatLayout"},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor"},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor.ProcessGroupState"},
    {"torch.distributed._shard.sharded_tensor.shard", "Shard"},
    {"torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata"},
    {"torch.distributed._shard.metadata", "ShardMetadata"},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"},
    {"torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec"},
    {"torch.distributed.remote_device", "_remote_device"},
});

/// The tensor classes of legacy files: `torch.FloatTensor`, `torch.cuda.sparse.HalfTensor`.
bool is_tensor_class(std::string_view module, std::string_view name) {
  const bool torch =
      module == "torch" || module == "torch.cuda" || module == "torch.sparse" || module == "torch.cuda.sparse";
  return torch && name.size() > 6 && name.substr(name.size() - 6) == "Tensor";
}

bool at_or_below(std::string_view module, std::string_view parent) {
  return module.substr(0, parent.size()) == parent && (module.size() == parent.size() || module[parent.size()] == '.');
}

const Risk* find_row(std::string_view module, std::string_view name) {
  for (const Risk& row : kRisks) {
    if (at_or_below(module, row.module) && (row.name.empty() || name == row.name || at_or_below(name, row.name)))
      return &row;
  }
  return nullptr;
}

bool is_safe(std::string_view module, std::string_view name) {
  for (const auto& row : kAlsoSafe) {
    if (module == row.first && name == row.second) return true;
  }
  if (name.find('.') != std::string_view::npos) return false;
  return meaning_of(module, name) != Meaning::kUnknown || is_tensor_class(module, name);
}

}  // namespace

Classification classify_global(std::string_view module, std::string_view name) {
  // Protocol 2 keeps the names of Python 2.
  if (module == "__builtin__") module = "builtins";
  if (module == "copy_reg") module = "copyreg";
  if (is_safe(module, name)) return {Verdict::kSafe, ""};
  if (const Risk* row = find_row(module, name)) return {Verdict::kDangerous, row->why};
  // What a dotted name leads to: `torch` has `serialization.os.system`.
  std::string_view rest = name;
  for (size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
    const std::string_view first = rest.substr(0, dot);
    rest.remove_prefix(dot + 1);
    for (const Risk& row : kRisks) {
      if (row.module == first && (row.name.empty() || at_or_below(rest, row.name)))
        return {Verdict::kDangerous, row.why};
    }
  }
  if (name.find("__") != std::string_view::npos) return {Verdict::kDangerous, kReach};
  return {Verdict::kUnknown, "is not known to be harmless"};
}

}  // namespace ckpt::pickle
