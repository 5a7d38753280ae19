#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
namespace fs = std::filesystem;

namespace {

/// What is said of a folder with these files, all without content, and its hint.
std::string told(std::initializer_list<const char*> files) {
  TempDir dir;
  for (const char* file : files) {
    fs::create_directories((dir.path / file).parent_path());
    REQUIRE(io::write_file(dir.path / file, ""));
  }
  auto catalog = formats::open_checkpoint(dir.path, {});
  if (catalog) return "opened";
  CHECK(catalog.error().code == Code::kUnsupported);
  return catalog.error().message + "; " + catalog.error().hint;
}

bool has(const std::string& text, std::string_view part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE(text);
  return false;
}

}  // namespace

TEST_CASE("known formats that are not read are named, with what of them can be read") {
  CHECK(has(told({"latest", "global_step10/mp_rank_00_model_states.pt",
                  "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt"}),
            "DeepSpeed"));
  const std::string step = told({"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"});
  CHECK(has(step, "DeepSpeed"));
  CHECK(has(step, "mp_rank_00_model_states.pt is read by itself"));
  CHECK(has(told({"mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"}), "old torch format"));
  CHECK(has(told({"latest_universal", "global_step10_universal/zero/w/fp32.pt"}), "universal"));
  CHECK(has(told({"dlrover_latest.txt", "10/rank_0.pt", "10/rank_1.pt"}), "DLRover"));
  CHECK(has(told({"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}), "veRL"));
  CHECK(has(told({"ckpt_0.pt", "ckpt_1.pt"}), "ckpt_0.pt is read by itself"));
  CHECK(has(
      told({"pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"}),
      "pytorch_model"));
  CHECK(has(told({"consolidated.00.pth", "consolidated.01.pth", "params.json"}), "Llama"));
  CHECK(has(told({"manifest.ocdbt", "d/abc", "_METADATA"}), "OCDBT"));
  CHECK(has(told({"ocdbt.process_0/manifest.ocdbt"}), "OCDBT"));
  CHECK(has(told({"model_index.json", "unet/config.json"}), "diffusers"));
  CHECK(has(told({"blobs/abc", "snapshots/0123/x", "refs/main"}), "below snapshots"));
  CHECK(has(told({"a.pt", "b.pt"}), "give one of them: a.pt"));
  CHECK(has(told({"readme.txt"}), "no checkpoint that ckpt knows"));
}

TEST_CASE("known files that are not read are named by their beginning or their suffix") {
  TempDir dir;
  auto file = [&](const std::string& name, std::string_view content) {
    REQUIRE(io::write_file(dir.path / name, content));
    return open_error(dir.path / name, Code::kUnsupported);
  };
  CHECK(has(file("model", std::string_view("\x89HDF\r\n\x1a\n....", 12)), "HDF5"));
  CHECK(has(file("model.onnx", "12345678"), "ONNX"));
  CHECK(has(file("model.onnx", ""), "ONNX"));
  CHECK(has(file("x.nemo", "12345678"), "NeMo"));
  CHECK(has(file("x", std::string_view("\x1f\x8b\x08\0\0\0\0\0", 8)), "gzip"));
  CHECK(has(file("x.txt", "12345678"), "no checkpoint that ckpt knows"));
}
