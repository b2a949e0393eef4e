export * from "./api.js";
export {
  MinionsClient,
  MinionsError,
  type ClientOptions,
  type FinishOptions,
  type FollowOptions,
  type RunOptions,
} from "./client.js";
