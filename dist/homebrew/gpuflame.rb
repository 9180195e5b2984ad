# Homebrew's formula for the command, which reads recordings and traces. It does not contain the library that records, so
# `gpuflame run` needs `--library FILE`. Each release changes the archive's version and digest.
class Gpuflame < Formula
  desc "Flame graphs of GPU time: reads recordings and traces of GPU programs"
  homepage "https://github.com/gpuflame/gpuflame"
  url "https://github.com/gpuflame/gpuflame/releases/download/v0.1.0/gpuflame-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args(path: "src/cli")
    system bin/"gpuflame", "man", man1.tap(&:mkpath)
    generate_completions_from_executable(bin/"gpuflame", "completions", shells: [:bash, :zsh, :fish])
  end

  test do
    (testpath/"a.folded").write "main;decode 7\n"
    system bin/"gpuflame", "flamegraph", "a.folded", "-o", "a.svg"
    assert_match "decode", (testpath/"a.svg").read
  end
end
