// Runs a command in a sandbox of Harvest and prints the sandbox's events. HARVEST_URL and HARVEST_API_KEY name the
// server. The types come from the server's OpenAPI document: "npm run generate" writes them to harvest.ts.
import createClient from "openapi-fetch";
import type { paths } from "./harvest.ts";

const baseUrl = process.env.HARVEST_URL!;
const headers = { Authorization: `Bearer ${process.env.HARVEST_API_KEY}` };
// Some routes send events instead, if the request accepts them. The requests here accept JSON only.
type JSONTypes = "application/json" | "application/problem+json";
const harvest = createClient<paths, JSONTypes>({ baseUrl, headers });

// events yields the name and the data of each event of a stream until it ends.
async function* events(stream: ReadableStream<Uint8Array>): AsyncGenerator<{ name: string; data: unknown }> {
	let text = "";
	const decoder = new TextDecoder();
	for await (const chunk of stream) {
		text += decoder.decode(chunk, { stream: true });
		const blocks = text.split("\n\n");
		text = blocks.pop()!;
		for (const block of blocks) {
			const fields = new Map(block.split("\n").map((line) => line.split(/: (.*)/s, 2) as [string, string]));
			if (fields.has("data")) yield { name: fields.get("event")!, data: JSON.parse(fields.get("data")!) };
		}
	}
}

const created = await harvest.POST("/v1/sandboxes", { body: { name: "typescript" } });
if (!created.data) throw new Error(created.error.detail);
const id = created.data.id;
try {
	const ran = await harvest.POST("/v1/sandboxes/{id}/exec", {
		params: { path: { id } },
		body: { args: ["sh", "-c", "echo $((6*7))"] },
	});
	if (!ran.data) throw new Error(ran.error.detail);
	process.stdout.write(ran.data.stdout);
	const missing = await harvest.GET("/v1/sandboxes/{id}/files", {
		params: { path: { id }, query: { path: "/missing" } },
	});
	if (missing.error) console.log("refused:", missing.error.detail);
} finally {
	await harvest.DELETE("/v1/sandboxes/{id}", { params: { path: { id } } });
}

// Events are kept after the end of the sandbox. The stream waits for new ones, so the loop ends it.
const followed = await fetch(`${baseUrl}/v1/events?stream=${id}`, { headers });
for await (const { name } of events(followed.body!)) {
	console.log("event:", name);
	if (name === "sandbox.terminated") break;
}
