// Signs in to the MCP server at the address in its argument. It prints the page for the user, reads the code from stdin,
// and prints how many tools there are before and after the access token was lost.
import { createInterface } from 'node:readline/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const redirect = 'http://localhost:8090/callback';
const kept = {};
const authProvider = {
	redirectUrl: redirect,
	clientMetadata: { client_name: 'TypeScript', redirect_uris: [redirect], grant_types: ['authorization_code',
		'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'none' },
	clientInformation: () => kept.client,
	saveClientInformation: (client) => { kept.client = client; },
	tokens: () => kept.tokens,
	saveTokens: (tokens) => { kept.tokens = tokens; },
	codeVerifier: () => kept.verifier,
	saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
	redirectToAuthorization: (page) => console.log(JSON.stringify({ page: page.href })),
};

async function tools() {
	const client = new Client({ name: 'test', version: '1' });
	await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2]), { authProvider }));
	const list = await client.listTools();
	await client.close();
	return list.tools.length;
}

const transport = new StreamableHTTPClientTransport(new URL(process.argv[2]), { authProvider });
try {
	await new Client({ name: 'test', version: '1' }).connect(transport);
	throw new Error('connected without a token');
} catch (error) {
	if (!(error instanceof UnauthorizedError)) throw error;
}
const lines = createInterface({ input: process.stdin });
await transport.finishAuth((await lines[Symbol.asyncIterator]().next()).value);
lines.close();
const before = await tools();
const first = kept.tokens.refresh_token;
kept.tokens = { ...kept.tokens, access_token: 'hva_expired' };
const after = await tools();
console.log(JSON.stringify({ before, after, rotated: kept.tokens.refresh_token !== first }));
process.stdin.destroy();
