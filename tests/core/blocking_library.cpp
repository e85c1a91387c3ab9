// A library whose loading never ends.
extern "C" void block_the_loader();

namespace {
[[gnu::constructor]] void block() {
  block_the_loader();
}
}  // namespace
