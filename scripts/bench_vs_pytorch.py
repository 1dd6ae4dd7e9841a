#!/usr/bin/env python3
# Our training step beside a PyTorch model of the same architecture on the same CPU threads; needs torch, which only this comparison uses.
"""Our training step beside PyTorch's: the same architecture, sizes, batch, precision (fp32) and number of threads, on the CPU.

    scripts/bench_vs_pytorch.py [-c configs/kjv_tiny.yaml] [--deltron build/release/deltron] [--threads 2] [--steps 10] [--json]
                                [section.key=value ...]

The PyTorch model is written here in plain torch: Gated DeltaNet with the chunked rule (chunks of 64, the triangular inverse by forward
substitution, as in the torch path of common model libraries), causal convolution by conv1d, gated RMSNorm, softmax attention through
scaled_dot_product_attention, SwiGLU, AdamW (fused where this torch has it) and gradient clipping. Needs torch and pyyaml; `deltron bench step` gives our side.
Each side is warmed up; the figure is the median of the timed steps. Both run one after the other, alone, on the same cores.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("-c", "--config", default="configs/kjv_tiny.yaml")
parser.add_argument("--deltron", default="build/release/deltron", help="the binary")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=10, help="timed steps of either side")
parser.add_argument("--warm-up", type=int, default=3)
parser.add_argument("--compile", action="store_true", help="also time torch.compile's version of the model")
parser.add_argument("--json", action="store_true")
parser.add_argument("overrides", nargs="*", metavar="section.key=value")
arguments = parser.parse_args()

cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
os.sched_setaffinity(0, cores)  # before torch starts its threads; children inherit it
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(arguments.threads)

try:
    import torch
    import torch.nn.functional as F
    import yaml
except ImportError as missing:
    sys.exit(f"bench_vs_pytorch.py: {missing}; this comparison runs where torch and pyyaml are installed")
from torch import nn

torch.set_num_threads(arguments.threads)
torch.manual_seed(1)

CHUNK = 64
EPSILON = 1e-6

with open(arguments.config, encoding="utf-8") as file:
    config = yaml.safe_load(file)
for override in arguments.overrides:
    key, value = override.split("=", 1)
    section, name = key.split(".", 1)
    config.setdefault(section, {})[name] = yaml.safe_load(value)
model_config, training, optimizer_config = config["model"], config["training"], config["optimizer"]
if training.get("bf16", False):
    sys.exit("bench_vs_pytorch.py compares fp32 steps; leave training.bf16 out")


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)


def chunk_gated_delta_rule(q, k, v, g, beta):
    """q, k [B,H,T,K], v [B,H,T,V], g and beta [B,H,T] -> [B,H,T,V]; T a multiple of the chunk. State starts at zero."""
    batch, heads, length, key_dim = q.shape
    value_dim = v.shape[-1]
    chunks = length // CHUNK
    q = q * key_dim**-0.5
    q, k, v = (x.reshape(batch, heads, chunks, CHUNK, -1) for x in (q, k, v))
    g = g.reshape(batch, heads, chunks, CHUNK).cumsum(-1)
    beta = beta.reshape(batch, heads, chunks, CHUNK, 1)
    k_beta, v_beta = k * beta, v * beta
    upper = torch.triu(torch.ones(CHUNK, CHUNK, dtype=torch.bool), 0)
    strictly_upper = torch.triu(upper, 1)
    decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(strictly_upper, 0).exp().masked_fill(strictly_upper, 0)
    lower = -((k_beta @ k.transpose(-1, -2)) * decay).masked_fill(upper, 0)
    for i in range(1, CHUNK):
        row = lower[..., i, :i].clone()
        earlier = lower[..., :i, :i].clone()
        lower[..., i, :i] = row + (row.unsqueeze(-1) * earlier).sum(-2)
    inverse = lower + torch.eye(CHUNK)
    values = inverse @ v_beta
    keys = inverse @ (k_beta * g.exp().unsqueeze(-1))
    state = q.new_zeros(batch, heads, key_dim, value_dim)
    outputs = []
    for i in range(chunks):
        qi, ki, gi = q[:, :, i], k[:, :, i], g[:, :, i]
        scores = (qi @ ki.transpose(-1, -2)) * decay[:, :, i]
        new = values[:, :, i] - keys[:, :, i] @ state
        outputs.append((qi * gi.unsqueeze(-1).exp()) @ state + scores @ new)
        state = state * gi[..., -1, None, None].exp() + (ki * (gi[..., -1:] - gi).exp().unsqueeze(-1)).transpose(-1, -2) @ new
    return torch.stack(outputs, 2).reshape(batch, heads, length, value_dim)


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.key_heads, self.value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.key_dim, self.value_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.kernel = c.get("linear_conv_kernel_dim", 4)
        h, dq, dv = c["hidden_size"], self.key_heads * self.key_dim, self.value_heads * self.value_dim
        self.dq, self.dv = dq, dv
        self.qkv = nn.Linear(h, 2 * dq + dv, bias=False)
        self.gates = nn.Linear(h, dv + 2 * self.value_heads, bias=False)
        self.conv = nn.Conv1d(2 * dq + dv, 2 * dq + dv, self.kernel, groups=2 * dq + dv, padding=self.kernel - 1, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.ones(self.value_heads))
        self.norm = RMSNorm(self.value_dim)
        self.out = nn.Linear(dv, h, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        mixed = F.silu(self.conv(self.qkv(x).transpose(1, 2))[..., :length]).transpose(1, 2)
        q, k, v = mixed.split([self.dq, self.dq, self.dv], -1)
        z, beta, alpha = self.gates(x).split([self.dv, self.value_heads, self.value_heads], -1)
        heads = lambda t, n, d: t.reshape(batch, length, n, d).transpose(1, 2)
        q, k = heads(q, self.key_heads, self.key_dim), heads(k, self.key_heads, self.key_dim)
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + EPSILON) for t in (q, k))
        group = self.value_heads // self.key_heads
        if group > 1:
            q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        g = (-self.A_log.exp() * F.softplus(alpha + self.dt_bias)).transpose(1, 2)
        out = chunk_gated_delta_rule(q, k, heads(v, self.value_heads, self.value_dim), g, beta.sigmoid().transpose(1, 2))
        out = self.norm(out.transpose(1, 2)) * F.silu(z.reshape(batch, length, self.value_heads, self.value_dim))
        return self.out(out.reshape(batch, length, self.dv))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["num_attention_heads"]
        self.groups = c.get("num_query_groups") or self.heads
        self.dim = c.get("kv_channels") or c["hidden_size"] // self.heads
        self.gated, self.qk_norm = c.get("attention_output_gate", False), c.get("qk_layernorm", False)
        h = c["hidden_size"]
        self.widths = [self.heads * self.dim] + ([self.heads * self.dim] if self.gated else []) + [self.groups * self.dim] * 2
        self.qkv = nn.Linear(h, sum(self.widths), bias=False)
        self.proj = nn.Linear(self.heads * self.dim, h, bias=False)
        if self.qk_norm:
            self.q_norm, self.k_norm = RMSNorm(self.dim), RMSNorm(self.dim)
        rotary = int(self.dim * c.get("rotary_percent", 1.0)) // 2 * 2
        self.rotary = rotary if c.get("position_embedding_type", "rope") == "rope" else 0
        positions = torch.arange(training["seq_length"]).float()
        if self.rotary:
            angles = torch.outer(positions, c.get("rotary_base", 10000.0) ** (-torch.arange(0, rotary, 2).float() / rotary))
            self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
            self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def rotate(self, x):
        if not self.rotary:
            return x
        turned, rest = x[..., : self.rotary], x[..., self.rotary :]
        a, b = turned.chunk(2, -1)
        return torch.cat([turned * self.cos + torch.cat([-b, a], -1) * self.sin, rest], -1)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(x).split(self.widths, -1)
        heads = lambda t, n: t.reshape(batch, length, n, self.dim).transpose(1, 2)
        q, k, v = heads(parts[0], self.heads), heads(parts[-2], self.groups), heads(parts[-1], self.groups)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotate(q), self.rotate(k)
        group = self.heads // self.groups
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        return self.proj(out * parts[1].sigmoid() if self.gated else out)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1 = nn.Linear(c["hidden_size"], 2 * c["ffn_hidden_size"], bias=False)
        self.fc2 = nn.Linear(c["ffn_hidden_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        gate, up = self.fc1(x).chunk(2, -1)
        return self.fc2(F.silu(gate) * up)


def is_linear(c, layer):
    if c.get("experimental_attention_variant") != "gdn":
        return False
    frequency = c.get("linear_attention_freq", 0)
    if isinstance(frequency, list):
        return bool(frequency[layer])
    return frequency == 0 or (layer + 1) % frequency != 0


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["hidden_size"]
        self.embedding = nn.Embedding(c["vocab_size"], h)
        self.blocks = nn.ModuleList(
            nn.ModuleList([RMSNorm(h), GatedDeltaNet(c) if is_linear(c, i) else Attention(c), RMSNorm(h), Mlp(c)]) for i in range(c["num_layers"])
        )
        self.norm = RMSNorm(h)
        self.output = nn.Linear(h, c["vocab_size"], bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        if not c.get("untie_embeddings_and_output_weights", False):
            self.output.weight = self.embedding.weight

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for norm1, mixer, norm2, mlp in self.blocks:
            x = x + mixer(norm1(x))
            x = x + mlp(norm2(x))
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), labels.flatten())


def check_rule():
    """The chunked rule against the recurrence of its definition, in fp64."""
    batch, heads, length, dim = 1, 2, 2 * CHUNK, 8
    q, k, v = (torch.randn(batch, heads, length, dim, dtype=torch.float64) for _ in range(3))
    k = F.normalize(k, dim=-1)
    g, beta = -torch.rand(batch, heads, length, dtype=torch.float64), torch.rand(batch, heads, length, dtype=torch.float64)
    state = torch.zeros(batch, heads, dim, dim, dtype=torch.float64)
    expected = []
    for t in range(length):
        state = state * g[..., t, None, None].exp()
        new = (v[:, :, t] - (state * k[:, :, t].unsqueeze(-1)).sum(-2)) * beta[:, :, t].unsqueeze(-1)
        state = state + k[:, :, t].unsqueeze(-1) * new.unsqueeze(-2)
        expected.append((state * (q[:, :, t] * dim**-0.5).unsqueeze(-1)).sum(-2))
    difference = (chunk_gated_delta_rule(q, k, v, g, beta) - torch.stack(expected, 2)).abs().max().item()
    assert difference < 1e-10, difference


def time_torch(compiled):
    micro, total, length = training["micro_batch_size"], training["global_batch_size"], training["seq_length"]
    if length % CHUNK:
        sys.exit(f"training.seq_length must be a multiple of {CHUNK} here")
    model = Model(model_config)
    count = sum(p.numel() for p in model.parameters())
    run = torch.compile(model) if compiled else model
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": optimizer_config.get("weight_decay", 0.01)}, {"params": others, "weight_decay": 0.0}]
    try:
        optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    except (RuntimeError, TypeError):
        optimizer = torch.optim.AdamW(groups, lr=1e-4, foreach=True)
    ids = torch.randint(model_config["vocab_size"], (micro, length))
    seconds = []
    for step in range(arguments.warm_up + arguments.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(total // micro):
            (run(ids, ids) / (total // micro)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer_config.get("clip_grad", 1.0))
        optimizer.step()
        if step >= arguments.warm_up:
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    return {"parameters": count, "step_ms": 1000 * median, "step_ms_fastest": 1000 * min(seconds), "tokens_per_second": total * length / median}


def time_deltron():
    command = [arguments.deltron, "bench", "step", "-c", arguments.config, "--steps", str(arguments.steps), "--warm-up", str(arguments.warm_up),
               "--json", *arguments.overrides, f"training.threads={arguments.threads}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


check_rule()
ours = time_deltron()
theirs = time_torch(False)
result = {
    "config": arguments.config, "threads": arguments.threads, "machine": ours.get("processor", platform.processor()), "torch": torch.__version__,
    "deltron": {key: ours[key] for key in ("step_ms", "step_ms_fastest", "tokens_per_second", "instruction_set")},
    "pytorch": theirs, "ratio": ours["tokens_per_second"] / theirs["tokens_per_second"],
}
if arguments.compile:
    result["pytorch_compiled"] = time_torch(True)
    result["ratio_compiled"] = ours["tokens_per_second"] / result["pytorch_compiled"]["tokens_per_second"]
if arguments.json:
    print(json.dumps(result, indent=2))
else:
    print(f"{arguments.config}: fp32, {arguments.threads} threads, {result['machine']}")
    print(f"deltron          {ours['tokens_per_second']:10,.0f} tokens/s   {ours['step_ms']:8.1f} ms a step")
    print(f"torch {torch.__version__:10} {theirs['tokens_per_second']:10,.0f} tokens/s   {theirs['step_ms']:8.1f} ms a step   ({theirs['parameters']:,} parameters)")
    print(f"ratio            {result['ratio']:10.2f}")
    if arguments.compile:
        print(f"torch.compile    {result['pytorch_compiled']['tokens_per_second']:10,.0f} tokens/s   ratio {result['ratio_compiled']:.2f}")
