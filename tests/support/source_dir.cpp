// Where the checkout is: here alone, so that every other object is the same in all checkouts.
namespace ckpt::test {
extern const char* const kSourceDir;
const char* const kSourceDir = CKPT_SOURCE_DIR;
}  // namespace ckpt::test
