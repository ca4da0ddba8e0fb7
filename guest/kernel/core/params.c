/* The command line: key=value, separated by spaces. What is not known is reported and ignored. */
#include "kernel.h"

struct params params = {
	.workload = "mix", .seed = 1, .threads = 0, .hz = 250, .load = 100, .rounds = 31,
};

struct number_param {
	const char *name;
	u64 *value;
	u64 lo, hi;
};

static const struct number_param numbers[] = {
	{ "seed", &params.seed, 0, ~0UL },    { "iters", &params.iters, 0, ~0UL },
	{ "threads", &params.threads, 0, 64 }, { "hz", &params.hz, 0, 10000 },
	{ "nmi_hz", &params.nmi_hz, 0, 10000 }, { "load", &params.load, 1, 100 },
	{ "rounds", &params.rounds, 1, 64 },
};

static bool parse_number(const char *key, const char *value)
{
	TRACED;
	for (u32 i = 0; i < ARRAY_SIZE(numbers); i++) {
		u64 v;

		if (strcmp(key, numbers[i].name))
			continue;
		if (kstrtoull(value, &v)) {
			pr_emerg("params: %s=%s is not a number, ignored\n", key, value);
			return true;
		}
		*numbers[i].value = min(max(v, numbers[i].lo), numbers[i].hi);
		return true;
	}
	return false;
}

static void parse_one(char *word)
{
	TRACED;
	char *value = strchr(word, '=');

	if (value)
		*value++ = 0;
	if (!value && !strcmp(word, "quiet"))
		params.quiet = true;
	else if (value && !strcmp(word, "workload"))
		strlcpy(params.workload, value, sizeof(params.workload));
	else if (!value || !parse_number(word, value))
		pr_emerg("params: unknown parameter \"%s\"\n", word);
}

void parse_cmdline(const char *s)
{
	TRACED;
	static char line[EXO_CMDLINE_BYTES];
	char *rest = line, *word;

	memcpy(line, s, sizeof(line));
	line[sizeof(line) - 1] = 0;
	while ((word = strsep(&rest, ' ')) != NULL)
		if (*word)
			parse_one(word);
}
