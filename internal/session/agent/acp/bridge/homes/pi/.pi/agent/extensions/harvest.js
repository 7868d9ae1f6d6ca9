// Part of Harvest, which writes this file before pi starts: requests to the session's model go to the server.
export default function (pi) {
	const { HARVEST_MODEL_PROVIDER: provider, HARVEST_MODEL_URL: baseUrl } = process.env;
	if (provider && baseUrl) pi.registerProvider(provider, { baseUrl });
}
